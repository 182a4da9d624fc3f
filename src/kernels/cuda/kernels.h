#pragma once

#include "vlmtrain/kernels/launchers.h"

namespace vlmtrain::kernels {

// A file each; what they do stands with their arguments.
int gate_forward(const GateForward& call, void* stream);
int gate_backward(const GateBackward& call, void* stream);
int activate(const Activate& call, void* stream);
int rotate(const Rotate& call, void* stream);
int norm_forward(const NormForward& call, void* stream);
int norm_backward(const NormBackward& call, void* stream);
int cross_entropy(const CrossEntropy& call, void* stream);
int adamw(const AdamW& call, void* stream);
int nf4_dequantize(const Nf4Dequantize& call, void* stream);
int int8_dequantize(const Int8Dequantize& call, void* stream);
int patches(const Patches& call, void* stream);
int dropout(const Dropout& call, void* stream);
int dropout_backward(const DropoutBackward& call, void* stream);
int norm_rotate_forward(const NormRotateForward& call, void* stream);
int norm_rotate_backward(const NormRotateBackward& call, void* stream);

}  // namespace vlmtrain::kernels
