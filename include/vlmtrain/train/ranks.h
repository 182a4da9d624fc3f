#pragma once

namespace vlmtrain::train {

/// Throws UserError (kUsage) where this process is one of several that a launcher has started for one run (torchrun,
/// mpirun, a step of srun with several tasks): each would train by itself, into the same folder. A batch script of a
/// SLURM job with several tasks is one process.
void refuse_several_ranks();

}  // namespace vlmtrain::train
