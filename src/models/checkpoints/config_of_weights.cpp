#include "models/checkpoints/config_of_weights.h"

#include <utility>

#include "models/checkpoints/tied_output.h"
#include "vlmtrain/io/checkpoint.h"

namespace vlmtrain::models {

nlohmann::json reconcile_config(nlohmann::json config, const Family& family, const std::filesystem::path& folder) {
  if (!may_tie_output(config)) return config;
  const auto tensors = find_output_tensors(io::read_checkpoint_tensor_names(folder));
  if (!tensors) return config;
  // The family alone knows which of the keys counts.
  const auto model = family.build(config, folder, {at::TensorOptions(at::kFloat).device(at::kMeta)});
  if (has_tied_output(*model) && !are_output_tensors_equal(*tensors, folder)) set_tied_output(config, false);
  return config;
}

}  // namespace vlmtrain::models
