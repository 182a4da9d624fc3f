#pragma once

namespace vlmtrain::app {

/// Makes OpenMP's threads sleep where they wait for each other. By default they spin, and where something else needs a
/// core (the loader's threads do), a step that takes 30 ms has been seen to take seconds; asleep they lost nothing on
/// an idle machine. OpenMP reads its settings before main, so the program starts itself once more (0.2 s), unless the
/// user has set OMP_WAIT_POLICY. For commands that compute on the CPU, before they do anything.
void let_openmp_threads_sleep();

}  // namespace vlmtrain::app
