"XLA's compiler may take it easy here: what is tested is equal numbers and counts of programs."

import os

# Half the processor time of a compilation. Inherited by the processes that the tests start.
EASY = "--xla_backend_optimization_level=0 --xla_disable_hlo_passes=constant_folding"
os.environ.setdefault("XLA_FLAGS", EASY)
