#pragma once

#include "vlmtrain/kernels/launchers.h"

namespace vlmtrain::kernels {

// Each function launches one kernel and is implemented in the file of that kernel. launchers.h
// documents the arguments and the result.
int gated_activation_forward(const GatedActivationForward& args, void* stream);
int gated_activation_backward(const GatedActivationBackward& args, void* stream);
int activate(const Activate& args, void* stream);
int rope(const Rope& args, void* stream);
int norm_forward(const NormForward& args, void* stream);
int norm_backward(const NormBackward& args, void* stream);
int cross_entropy(const CrossEntropy& args, void* stream);
int adamw(const AdamW& args, void* stream);
int nf4_dequantize(const Nf4Dequantize& args, void* stream);
int int8_dequantize(const Int8Dequantize& args, void* stream);
int patchify(const Patchify& args, void* stream);
int dropout(const Dropout& args, void* stream);
int dropout_backward(const DropoutBackward& args, void* stream);
int qk_norm_rope_forward(const QkNormRopeForward& args, void* stream);
int qk_norm_rope_backward(const QkNormRopeBackward& args, void* stream);

}  // namespace vlmtrain::kernels
