"""
A collective beside a matrix product
====================================

``meshlab.benchmark.overlap`` measures options of a collective while the same GPUs compute. The bar is what
the call adds to the product, and the tick is the time of the call alone. These numbers are written by hand.
"""

import pandas as pd

import meshlab as ml

names = ["option", "both_us", "exposed_us", "communication_us"]
rows = [
    ("default", 1784.0, 190.0, 276.0),
    ("symmetric window", 1690.0, 96.0, 301.0),
    ("≤ 8 CTAs", 1842.0, 248.0, 520.0),
]
frame = pd.DataFrame(rows, columns=names)
frame = frame.assign(collective="all_gather", size_bytes=2**27, m=8192, n=8192, k=8192, dtype="float16")
ml.plot.overlap(frame)
