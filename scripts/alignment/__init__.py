"""Before the registration: is the pair skull-stripped, does it overlap, is it aligned, and if not, align it.

`foreground` finds the brain, `checks` judges images, `align` finds an affine map with SimpleITK from `working` images
(both at the same coarse resolution), `score` judges and `optimize` improves such maps.
"""
