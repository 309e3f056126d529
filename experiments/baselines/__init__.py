"""Other registration tools on the same pairs, for comparison only: nothing in the bundle needs them."""
