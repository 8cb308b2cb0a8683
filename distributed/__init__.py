"""Everything that runs on Ray: collection, temperature search, DDP training, transfer, and the `icrl` command."""

import os

# Ray reads these when it is imported: plain output without duplicates, no warning about a choice made on purpose, and
# no second set of TensorBoard files beside the ones this package writes.
_RAY_ENVIRONMENT = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
}
for _name, _value in _RAY_ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)
