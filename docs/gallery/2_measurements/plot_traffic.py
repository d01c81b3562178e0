"""
Uneven traffic
==============

:class:`meshlab.Traffic` has the bytes from rank to rank, such as those of the tokens that a mixture of experts
routes. The longest bars and the pair with the most bytes are marked.
"""

import meshlab as ml

traffic = ml.Traffic.zipf(1.2, seed=0).of(8, "64M")
ml.plot.traffic(traffic)

# %%
# Between hosts of four ranks.

ml.plot.traffic(traffic, hosts=4)
