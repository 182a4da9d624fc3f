#include "vlmtrain/train/own_kernels.h"

#include "vlmtrain/base/log.h"

namespace vlmtrain::train {

kernels::KernelSet left_out_kernels(const engine::TrainingOptions& options) {
  if (options.kernels == kernels::KernelChoice::kOwn) return kernels::left_out_kernels();
  const auto all = kernels::all_kernels();
  return {all.begin(), all.end()};
}

void open_kernels(const engine::TrainingOptions& options, at::Device device) {
  const auto opened = kernels::open_kernels(device, left_out_kernels(options));
  if (!opened.problem.empty() && !device.is_cpu())
    spdlog::info("without own kernels, ATen's do all: {}", opened.problem);
  for (const auto& how : opened.wrong) {
    spdlog::warn(
        "an own kernel is left out, since this card does not compute it as ATen does: {}; please report it "
        "(training.kernels=aten does without them all)",
        how);
  }
}

}  // namespace vlmtrain::train
