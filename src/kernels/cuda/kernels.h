#pragma once

#include "vlmtrain/kernels/launchers.h"

namespace vlmtrain::kernels {

// Each function launches one kernel and is implemented in the file of that kernel. launchers.h
// documents the arguments and the result.
int gated_activation_forward(const GatedActivationForwardArgs& args, void* stream);
int gated_activation_backward(const GatedActivationBackwardArgs& args, void* stream);
int activate(const ActivationArgs& args, void* stream);
int rope(const RopeArgs& args, void* stream);
int norm_forward(const NormForwardArgs& args, void* stream);
int norm_backward(const NormBackwardArgs& args, void* stream);
int cross_entropy(const CrossEntropyArgs& args, void* stream);
int adamw(const AdamWArgs& args, void* stream);
int nf4_dequantize(const Nf4DequantizeArgs& args, void* stream);
int int8_dequantize(const Int8DequantizeArgs& args, void* stream);
int patchify(const PatchifyArgs& args, void* stream);
int dropout(const DropoutArgs& args, void* stream);
int dropout_backward(const DropoutBackwardArgs& args, void* stream);
int qk_norm_rope_forward(const QkNormRopeForwardArgs& args, void* stream);
int qk_norm_rope_backward(const QkNormRopeBackwardArgs& args, void* stream);

}  // namespace vlmtrain::kernels
