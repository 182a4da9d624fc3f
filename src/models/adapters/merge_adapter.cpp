#include <ATen/TensorOperators.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "models/adapters/adapter_check.h"
#include "models/adapters/adapter_layout.h"
#include "models/adapters/adapter_tensors.h"
#include "models/adapters/auxiliary_files.h"
#include "models/adapters/load_settings.h"
#include "models/adapters/output_module.h"
#include "models/checkpoints/companion_files.h"
#include "models/checkpoints/config_changes.h"
#include "models/checkpoints/new_folder.h"
#include "models/checkpoints/overflow.h"
#include "models/checkpoints/saved_config.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/number_words.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/dtype_name.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/io/lazy_tensors.h"
#include "vlmtrain/models/adapter.h"
#include "vlmtrain/models/base_fingerprint.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/nn/lora_adapter.h"
#include "vlmtrain/text/checkpoint_templates.h"

namespace vlmtrain::models {

namespace {

/// Returns `values` in `dtype`. Throws UserError (kBadData) where finite values overflow there.
at::Tensor in_type(const at::Tensor& values, at::ScalarType dtype, std::string_view name) {
  if (!overflows(values, dtype)) return values.to(dtype);
  throw data_error("{}: merged values reach {:.3g}, more than {} holds; merge with --dtype float32", name,
                   values.abs().max().item<double>(), io::dtype_name(dtype));
}

/// One adapted module: W of the base checkpoint, A and B of the adapter, which fit it.
class Fold {
 public:
  /// `weight` is what the base calls W of the module at `path`.
  Fold(const io::CheckpointTensors& base, const AdapterTensors& adapter, const std::string& path, std::string weight)
      : base_(base), adapter_(adapter), weight_(std::move(weight)), module_(path + ".") {}

  const std::string& weight() const { return weight_; }

  /// W + scale · B A in `dtype`; rounding is added to `counts`. Throws UserError (kBadData) where values overflow.
  at::Tensor merged(const nn::LoraSettings& settings, at::ScalarType dtype, MergedWeights& counts) const {
    const at::Tensor weight = base_.tensor(weight_);
    at::Tensor sum = at::mm(wide(kLoraB), wide(kLoraA)).mul_(settings.scale()).add_(weight);
    if (settings.use_dora) sum.mul_((wide(kMagnitude) / nn::row_lengths(sum)).unsqueeze(1));
    if (!find_non_finite(sum).empty()) {
      throw data_error(
          "{}: has values that are not finite once the adapter is merged; take an earlier checkpoint of the adapter, "
          "or "
          "check the base's weights",
          weight_);
    }
    at::Tensor rounded = in_type(sum, dtype, weight_);
    const at::Tensor is_changed = sum.ne(weight);
    counts.changed += is_changed.count_nonzero().item<int64_t>();
    counts.unchanged += rounded.eq(weight).logical_and_(is_changed).count_nonzero().item<int64_t>();
    return rounded;
  }

 private:
  at::Tensor wide(std::string_view tensor) const {
    return adapter_.tensor(module_ + std::string(tensor)).to(at::kFloat);
  }

  const io::CheckpointTensors& base_;
  const AdapterTensors& adapter_;
  std::string weight_;
  std::string module_;  // what the names of the adapter's tensors begin with
};

/// A tensor that takes the place of the base's, or is next to them.
struct WholeTensor {
  std::vector<int64_t> shape;
  std::function<at::Tensor()> read;
};

/// What does not come from a sum, by its name in the base: modules_to_save, and an output projection that is tied to a
/// trained embedding, or is no longer tied to it. REQUIRES: the adapter fits the model.
std::map<std::string, WholeTensor> whole_tensors(const AdapterTensors& adapter, const io::CheckpointTensors& base,
                                                 const VisionLanguageModel& model) {
  std::map<std::string, WholeTensor> found;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, std::function<at::Tensor()> read) {
    found.insert_or_assign(name, WholeTensor{.shape = std::move(shape), .read = std::move(read)});
  };
  const auto from_adapter = [&adapter](const std::string& name) {
    return [&adapter, name] { return adapter.tensor(name); };
  };
  for (const auto& parameter : model.parameters().all()) {
    if (!parameter.in_modules_to_save) continue;
    add(model.checkpoint_name(parameter.name), parameter.sizes().vec(), from_adapter(parameter.name));
  }
  const std::string output = model.checkpoint_name(output_module(model) + ".weight");
  const nn::Parameter* const tied = tied_embedding(model);
  if (tied != nullptr && tied->in_modules_to_save && base.contains(output)) {
    add(output, tied->sizes().vec(), from_adapter(tied->name));
  }
  const bool lacks_output = !base.contains(output) && !found.contains(output);
  if (model.parameters().lora()->unties_output && lacks_output) {
    const auto& all = model.parameters().all();
    const auto embedding = std::ranges::find_if(all, [](const nn::Parameter& parameter) {
      return parameter.is_embedding && parameter.component == nn::Component::kLanguageModel;
    });
    const std::string name = model.checkpoint_name(embedding->name);
    add(output, base.info(name).shape, [&base, name] { return base.tensor(name); });
  }
  return found;
}

/// Lets generation end where training ended answers.
void put_end_of_turn(const std::filesystem::path& base, const std::filesystem::path& adapter,
                     std::map<std::string, std::string>& files) {
  try {
    ProcessorSettings settings;
    settings.template_folder = adapter;
    put_end_token(load_processor(base, settings)->end_of_turn_id(), files);
  } catch (const UserError& error) {
    spdlog::warn("{}: whether generation_config.json ends texts at the adapter's end of turn is not known: {}",
                 adapter.string(), error.what());
  }
}

/// The base's with `dtype`, if there is one, and what the adapter changes of the model; byte for byte where that is
/// nothing.
std::string merged_config(const std::filesystem::path& base, const VisionLanguageModel& model,
                          std::optional<at::ScalarType> dtype) {
  const auto path = base / "config.json";
  const std::string original = io::read_file(path);
  auto config = io::parse_ordered_json(saved_config(model, original, path.string(), dtype), path.string());
  const auto& lora = *model.parameters().lora();
  if (lora.unties_output) {
    spdlog::info(
        "{}: the adapter has an embedding and an output projection that differ: config.json is written with "
        "tie_word_embeddings false",
        lora.adapter.string());
  }
  if (lora.vocabulary_rows > 0) {
    spdlog::info(
        "{}: the adapter has {} rows of the vocabulary, and its base fewer: config.json is written with that "
        "vocab_size",
        lora.adapter.string(), lora.vocabulary_rows);
    set_vocabulary(config, lora.vocabulary_rows);
  }
  const bool is_changed = config != io::parse_ordered_json(original, path.string());
  return is_changed ? io::json_text(config, 2) + "\n" : original;
}

/// The auxiliary files of the base and the adapter, with the chat template that the adapter was trained with: its own
/// or, where it brings none, the base's.
std::map<std::string, std::string> files_of_merged(const std::filesystem::path& adapter,
                                                   const std::filesystem::path& base, std::string config) {
  auto files = auxiliary_files(base, adapter);
  files["config.json"] = std::move(config);
  const auto of_adapter = text::templates_in(adapter), of_base = text::templates_in(base);
  for (const auto* templates : {&of_adapter, &of_base}) {
    const auto trained_with = templates->find("default");
    if (trained_with == templates->end()) continue;
    put_chat_template(trained_with->second.jinja, files);
    break;
  }
  put_end_of_turn(base, adapter, files);
  return files;
}

/// Says what rounding has kept of the adapter.
void report_rounding(const MergedWeights& counts, const std::filesystem::path& adapter, bool brings_modules) {
  if (counts.changed == 0) {
    if (!brings_modules) {
      spdlog::warn(
          "{}: the adapter changes no weight (its lora_B are zero), so what is written is the base; check that it is "
          "the adapter of a finished run",
          adapter.string());
    }
    return;
  }
  const double share = static_cast<double>(counts.unchanged) / static_cast<double>(counts.changed);
  constexpr double kMuch = 0.5;  // of a trained adapter in bf16 a fifth is usual
  const std::string text = fmt::format(
      "{}: of {} weights that the adapter changes, {} ({:.1f} %) have the base's value again in the type that they are "
      "written in",
      adapter.string(), number_words(counts.changed), number_words(counts.unchanged), 100 * share);
  if (share > kMuch) {
    spdlog::warn("{}; merge with --dtype float32 to keep the changes, or use the adapter as it is", text);
  } else if (counts.unchanged > 0) {
    spdlog::info("{}", text);
  }
}

}  // namespace

MergedWeights merge_adapter(const std::filesystem::path& adapter, const std::filesystem::path& out,
                            const MergeSettings& how) {
  prepare_new_folder(out);
  const auto base = base_of_adapter(adapter, how.base);
  const auto settings = read_adapter_settings(adapter, base);
  if (!warn_of_other_base(adapter, base)) warn_if_named_base_differs(adapter, base);
  // Without values: loading reads the names, shapes and types, and refuses what it refuses anywhere.
  const auto model = build_model(base, at::kMeta, at::kFloat, settings);
  load_base(*model, base, load_settings_of(settings));
  const AdapterModules modules(*model, output_module(*model));
  const AdapterTensors tensors(adapter, &modules);
  check_adapter_fits(*model, tensors);
  check_adapter_values(*model, tensors);
  const io::CheckpointTensors weights(base);
  std::vector<Fold> folds;
  for (const auto& path : settings.target_modules) {
    folds.emplace_back(weights, tensors, path, model->checkpoint_name(path + ".weight"));
  }
  auto whole = whole_tensors(tensors, weights, *model);
  std::string config = merged_config(base, *model, how.dtype);
  const auto type_of = [&how](at::ScalarType own) { return how.dtype && c10::isFloatingType(own) ? *how.dtype : own; };

  // Made when their turn comes, so that memory holds one at a time.
  MergedWeights counts;
  io::LazyTensors merged;
  for (const auto& name : weights.names()) {
    const io::TensorInfo& info = weights.info(name);
    const at::ScalarType dtype = type_of(info.dtype);
    io::LazyTensor& tensor = merged.emplace_back(
        io::LazyTensor{.name = name, .dtype = dtype, .shape = info.shape, .make = {}, .written = {}});
    tensor.written = [&weights, name] { weights.release(name); };
    const auto fold = std::ranges::find(folds, name, &Fold::weight);
    if (fold != folds.end()) {
      tensor.make = [&fold = *fold, &settings, dtype, &counts] { return fold.merged(settings, dtype, counts); };
    } else if (const auto saved = whole.extract(name); !saved.empty()) {
      tensor.shape = saved.mapped().shape;
      tensor.make = [read = saved.mapped().read, dtype, name] { return in_type(read(), dtype, name); };
    } else {
      tensor.make = [&weights, name, dtype] { return in_type(weights.tensor(name), dtype, name); };
    }
  }
  // What the base lacks and the adapter brings, such as a new projector.
  for (auto& [name, tensor] : whole) {
    const at::ScalarType dtype = type_of(tensor.read().scalar_type());
    merged.push_back({.name = name,
                      .dtype = dtype,
                      .shape = tensor.shape,
                      .make = [read = tensor.read, dtype, name = name] { return in_type(read(), dtype, name); },
                      .written = {}});
  }
  io::AtomicDirectory folder(out);
  for (const auto& [name, content] : files_of_merged(adapter, base, std::move(config))) {
    write_companion_file(folder.path(), name, content);
  }
  io::write_checkpoint_tensors(folder.path(), merged, io::kDefaultShardBytes);
  folder.commit();
  report_rounding(counts, adapter, /*brings_modules=*/!settings.modules_to_save.empty());
  return counts;
}

}  // namespace vlmtrain::models
