"""
Calls beside a product
======================

The time that a collective adds to a matrix product, by the option of the call. The tick is the time of the call alone.
"""

import pandas as pd

import meshlab as ml

frame = pd.read_csv("../../_static/overlap_2xH200.csv")  # frame = ml.benchmark.overlap(engines, mesh, axis="tp", …)
frame.attrs["where"] = "2 × H200 · NCCL 2.32.3"
ml.plot.overlap(frame[frame["size_bytes"] == 128 << 20])
