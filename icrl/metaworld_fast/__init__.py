"""MetaWorld at close to the cost of its physics, with equal bits.

Between two physics steps, MetaWorld spends most of its time in small numpy calls: observation, reward, expert. Here
those of its methods are run once on symbolic numbers (`tracing`, with `stand_ins` for numpy and MuJoCo), which writes
them down as flat Python on plain floats (`scalar_code`); `environment` steps with the result. `guard` lets this be used
only where it was proved equal.
"""
