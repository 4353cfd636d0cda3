"""One readable definition per op, in numpy, independent of the compiled extension.

Array arguments are ``mx.array``. Results that have rounding left to the caller are numpy arrays:
``arithmetic=np.float64`` gives the exact result (its own rounding is far below any working dtype),
``arithmetic=np.float32`` the same maths with every step rounded as the kernels may round it.
"""
