#pragma once

namespace vlmtrain::app {

/// Makes OpenMP's threads, where they wait for each other, spin for some ten microseconds and then sleep, in programs
/// that this process becomes. By default they spin for milliseconds, and where something else needs a core (the
/// loader's threads do), a step that takes 30 ms has been seen to take seconds. Asleep at once, they are woken by the
/// kernel twenty thousand times a step of short segments, which took half of the step (docs/benchmarks/cpu-speed.md).
/// False, and nothing was changed, where the user has set OMP_WAIT_POLICY or GOMP_SPINCOUNT.
bool set_openmp_wait_policy();

/// OpenMP reads its settings before main: starts the program once more where set_openmp_wait_policy() changed them,
/// which the front has done before. For commands that compute on the CPU, before they do anything.
void restart_with_openmp_wait_policy();

}  // namespace vlmtrain::app
