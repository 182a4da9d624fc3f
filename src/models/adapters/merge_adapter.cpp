#include <ATen/TensorOperators.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "models/adapters/adapter_layout.h"
#include "models/checkpoints/companion_files.h"
#include "models/checkpoints/load_parameters.h"
#include "models/checkpoints/new_folder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/lazy_tensors.h"
#include "vlmtrain/models/adapter.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/nn/lora_adapter.h"
#include "vlmtrain/text/checkpoint_templates.h"

namespace vlmtrain::models {

namespace {

/// One adapted module: W of the base checkpoint, A and B of the adapter.
class Fold {
 public:
  /// `weight` is what the base calls W of the module at `path`.
  Fold(const io::CheckpointTensors& base, const io::SafetensorsFile& adapter, const std::string& path,
       std::string weight)
      : base_(base),
        adapter_(adapter),
        weight_(std::move(weight)),
        tensors_(std::string(kAdapterPrefix) + path + ".") {}

  const std::string& weight() const { return weight_; }

  /// What stands in the way; empty: nothing.
  std::string problem(const nn::LoraSettings& settings) const {
    if (!base_.contains(weight_)) return "the base has no " + weight_;
    if (!adapter_.contains(name(kLoraB))) return "the adapter has no " + name(kLoraB);
    if (settings.use_dora && !adapter_.contains(name(kMagnitude))) return "the adapter has no " + name(kMagnitude);
    if (auto problem = dtype_problem(weight_, base_.info(weight_).dtype); !problem.empty()) return problem;
    for (const auto tensor : {kLoraA, kLoraB, kMagnitude}) {
      if (!adapter_.contains(name(tensor))) continue;
      if (auto problem = dtype_problem(name(tensor), adapter_.info(name(tensor)).dtype); !problem.empty()) {
        return problem;
      }
    }
    const auto& w = base_.info(weight_).shape;
    const auto& a = adapter_.shape(name(kLoraA));
    const auto& b = adapter_.shape(name(kLoraB));
    bool fits = w.size() == 2 && a == std::vector{settings.rank, w[1]} && b == std::vector{w[0], settings.rank};
    if (settings.use_dora) fits = fits && adapter_.shape(name(kMagnitude)) == std::vector{w[0]};
    return fits ? "" : fmt::format("{} is not of the shape that the adapter is for", weight_);
  }

  at::Tensor merged(const nn::LoraSettings& settings) const {
    const at::Tensor weight = base_.tensor(weight_);
    at::Tensor sum = weight.to(at::kFloat) + at::mm(wide(kLoraB), wide(kLoraA)).mul_(settings.scale());
    if (settings.use_dora) sum.mul_((wide(kMagnitude) / nn::row_lengths(sum)).unsqueeze(1));
    return sum.to(weight.scalar_type());
  }

 private:
  std::string name(std::string_view tensor) const { return tensors_ + std::string(tensor); }
  at::Tensor wide(std::string_view tensor) const { return adapter_.tensor(name(tensor)).to(at::kFloat); }

  const io::CheckpointTensors& base_;
  const io::SafetensorsFile& adapter_;
  std::string weight_;
  std::string tensors_;  // what the names of the adapter's tensors begin with
};

/// The tensors of modules_to_save, under their names in the base; what is wrong with them is added to `problems`.
std::map<std::string, at::Tensor> whole_modules(const io::SafetensorsFile& adapter, const VisionLanguageModel& model,
                                                std::vector<std::string>& problems) {
  std::map<std::string, at::Tensor> found;
  for (const auto& name : adapter.names()) {
    const bool is_lora = name.ends_with(kLoraA) || name.ends_with(kLoraB) || name.ends_with(kMagnitude);
    if (!is_lora && name.starts_with(kAdapterPrefix)) {
      if (auto problem = dtype_problem(name, adapter.info(name).dtype); !problem.empty()) {
        problems.push_back(std::move(problem));
      }
      found.emplace(model.checkpoint_name(name.substr(kAdapterPrefix.size())), adapter.tensor(name));
    }
  }
  for (const auto& parameter : model.parameters().all()) {
    const std::string name = std::string(kAdapterPrefix) + parameter.name;
    if (parameter.in_modules_to_save && !adapter.contains(name)) problems.push_back("the adapter has no " + name);
  }
  return found;
}

/// Lets generation end where training ended answers.
void put_end_of_turn(const std::filesystem::path& adapter, std::map<std::string, std::string>& files) {
  try {
    put_end_token(load_processor(adapter, {})->end_of_turn_id(), files);
  } catch (const UserError& error) {
    spdlog::warn("{}: whether generation_config.json ends texts at the adapter's end of turn is not known: {}",
                 adapter.string(), error.what());
  }
}

/// The base's, but with the chat template and the reading of volumes that the adapter was trained with.
std::map<std::string, std::string> files_of_merged(const std::filesystem::path& adapter,
                                                   const std::filesystem::path& base) {
  auto files = read_companion_files(base);
  files["config.json"] = io::read_file(base / "config.json");
  const auto of_adapter = text::templates_in(adapter), of_base = text::templates_in(base);
  for (const auto* templates : {&of_adapter, &of_base}) {
    const auto trained_with = templates->find("default");
    if (trained_with == templates->end()) continue;
    put_chat_template(trained_with->second.jinja, files);
    break;
  }
  put_end_of_turn(adapter, files);
  constexpr const char* kVolumeSettings = "volume_settings.json";
  if (std::filesystem::exists(adapter / kVolumeSettings)) {
    files[kVolumeSettings] = io::read_file(adapter / kVolumeSettings);
  }
  return files;
}

}  // namespace

void merge_adapter(const std::filesystem::path& adapter, const std::filesystem::path& out) {
  prepare_new_folder(out);
  const auto settings = read_adapter_settings(adapter);
  const auto base = base_of_adapter(adapter);
  const io::SafetensorsFile tensors = open_adapter(adapter);
  const io::CheckpointTensors weights(base);
  // For the names only: the base may spell them otherwise than the adapter.
  const auto model = build_model(base, at::kMeta, at::kFloat, settings);
  std::vector<Fold> folds;
  std::vector<std::string> problems;
  for (const auto& path : settings.target_modules) {
    folds.emplace_back(weights, tensors, path, model->checkpoint_name(path + ".weight"));
    if (auto problem = folds.back().problem(settings); !problem.empty()) problems.push_back(std::move(problem));
  }
  std::map<std::string, at::Tensor> whole = whole_modules(tensors, *model, problems);
  refuse_differences(fmt::format("{}: the adapter does not match its base {}", adapter.string(), base.string()),
                     problems);

  // Made when their turn comes, so that memory holds one at a time.
  io::LazyTensors merged;
  for (const auto& name : weights.names()) {
    const io::TensorInfo& info = weights.info(name);
    io::LazyTensor& tensor = merged.emplace_back(
        io::LazyTensor{.name = name, .dtype = info.dtype, .shape = info.shape, .make = {}, .written = {}});
    tensor.written = [&weights, name] { weights.release(name); };
    const auto fold = std::ranges::find(folds, name, &Fold::weight);
    if (fold != folds.end()) {
      tensor.make = [&fold = *fold, &settings] { return fold.merged(settings); };
    } else if (const auto saved = whole.extract(name); !saved.empty()) {
      tensor.shape = saved.mapped().sizes().vec();
      tensor.make = [values = saved.mapped(), dtype = info.dtype] { return values.to(dtype); };
    } else {
      tensor.make = [&weights, name] { return weights.tensor(name); };
    }
  }
  // What the base lacks and the adapter brings, such as a new projector.
  for (auto& tensor : io::lazily(io::NamedTensors(whole.begin(), whole.end()))) merged.push_back(std::move(tensor));
  io::AtomicDirectory folder(out);
  for (const auto& [name, content] : files_of_merged(adapter, base)) {
    write_companion_file(folder.path(), name, content);
  }
  io::write_checkpoint_tensors(folder.path(), merged, io::kDefaultShardBytes);
  folder.commit();
}

}  // namespace vlmtrain::models
