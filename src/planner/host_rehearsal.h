#pragma once

#include "vlmtrain/planner/rehearsal.h"

namespace vlmtrain::planner {

/// An optimizer step of a job on the CPU, without values: on LibTorch's meta device, in this process. Peaks are the
/// bytes of the tensors that live at once, those of operations' own included; `reserved` is the same. Only the
/// request's first step is done, and costs are not counted. Throws as rehearse() does.
Outcome rehearse_on_host(const Job& job, const RehearsalRequest& request);

}  // namespace vlmtrain::planner
