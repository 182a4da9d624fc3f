#pragma once

#include "vlmtrain/kernels/launchers.h"

namespace vlmtrain::kernels {

// A file each; what they do stands with their arguments.
int gate_forward(const GateForward& call, void* stream);
int gate_backward(const GateBackward& call, void* stream);
int rotate(const Rotate& call, void* stream);

}  // namespace vlmtrain::kernels
