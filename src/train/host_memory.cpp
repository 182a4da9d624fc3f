#include "train/host_memory.h"

#include <algorithm>

#include "vlmtrain/base/bytes.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/train/setup.h"

namespace vlmtrain::train {

namespace {

/// Summed in fp32 whatever the weights are.
constexpr int64_t kGradientBytes = 4;
/// AdamW's own copy of 16-bit weights; fp32 weights are their own.
constexpr int64_t kMasterBytes = 4;

int64_t weight_bytes(const nn::Parameter& parameter) {
  if (!parameter.quantized) return static_cast<int64_t>(parameter.tensor.nbytes());
  int64_t bytes = 0;
  for (const auto& [name, tensor] : parameter.quantized->state()) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

/// AdamW's two; what is held in fp32 all the same, and the scales of 8-bit states, are left out.
int64_t moment_bytes(engine::OptimizerStates states) {
  switch (states) {
    case engine::OptimizerStates::kFp32:
      return 8;
    case engine::OptimizerStates::kBf16:
      return 4;
    case engine::OptimizerStates::k8Bit:
      return 2;
  }
  return 0;
}

}  // namespace

void check_fits_host(const models::VisionLanguageModel& model, const Config& config, int64_t limit_bytes) {
  const int64_t moments = moment_bytes(adamw_settings(config.training).states);
  int64_t weights = 0;
  int64_t gradients = 0;
  int64_t states = 0;
  for (const auto& parameter : model.parameters().all()) {
    weights += weight_bytes(parameter);
    if (!parameter.tensor.requires_grad()) continue;
    const bool is_own_master = parameter.tensor.scalar_type() == at::kFloat;
    gradients += parameter.elements() * kGradientBytes;
    states += parameter.elements() * (moments + (is_own_master ? 0 : kMasterBytes));
  }
  const int64_t total = weights + gradients + states;
  if (total <= limit_bytes) return;
  throw UserError(
      ExitCode::kDoesNotFit,
      fmt::format(
          "model.path: {} does not fit in host memory: weights of {:.2f} GB, gradients of {:.2f} GB and "
          "optimizer states of {:.2f} GB are {:.2f} GB, and this process may use {:.2f} GB, activations "
          "included (the machine's memory, or what its control group leaves it, such as a SLURM job's --mem). "
          "Ask for more memory, train adapters (lora.rank=16, also with model.quantization=nf4) or freeze parts "
          "(model.freeze_vision_tower=true)",
          config.model.path, in_gigabytes(weights), in_gigabytes(gradients), in_gigabytes(states), in_gigabytes(total),
          in_gigabytes(limit_bytes)));
}

int64_t bytes_for_samples_ahead(int64_t limit_bytes, int64_t used_bytes) {
  constexpr int64_t kShare = 4;
  return std::max<int64_t>(1, (limit_bytes - used_bytes) / kShare);
}

}  // namespace vlmtrain::train
