#include "models/checkpoints/weights_fit.h"

#include "vlmtrain/base/bytes.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::models {

void check_weights_fit(const VisionLanguageModel& model, const std::filesystem::path& folder,
                       const memory::AvailableHostMemory& available) {
  int64_t bytes = 0;
  for (const auto& parameter : model.parameters().all()) {
    if (!parameter.tensor.is_cpu()) continue;
    const int64_t num_shards = parameter.sharded ? model.parameters().shard().count : 1;
    bytes += static_cast<int64_t>(parameter.tensor.nbytes()) / num_shards;
  }
  if (bytes <= available.bytes) return;
  throw UserError(
      ExitCode::kDoesNotFit,
      fmt::format("{} does not fit in host memory: its weights take {:.2f} GB, and this process may have "
                  "{:.2f} GB ({}); ask for more (SLURM's --mem), or compute in 16 bits (bf16)",
                  folder.string(), to_gigabytes(bytes), to_gigabytes(available.bytes), available.limit_source));
}

}  // namespace vlmtrain::models
