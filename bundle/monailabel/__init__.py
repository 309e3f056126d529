"""An app for MONAI Label: register any two images of the datastore, and see how sure the result is."""
