#include <ATen/TensorOperators.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "models/adapters/adapter_check.h"
#include "models/adapters/adapter_config.h"
#include "models/adapters/adapter_format.h"
#include "models/checkpoints/auxiliary_files.h"
#include "models/checkpoints/load_weights.h"
#include "models/checkpoints/saved_config.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/safetensors.h"
#include "vlmtrain/models/adapter.h"
#include "vlmtrain/models/base_weights.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/nn/layers/linear.h"
#include "vlmtrain/text/chat_template.h"

namespace vlmtrain::models {

namespace {

/// Returns `values` in `dtype`. Throws UserError (kBadData) if finite values overflow.
at::Tensor cast_or_throw(const at::Tensor& values, at::ScalarType dtype, std::string_view name) {
  if (!overflows(values, dtype)) return values.to(dtype);
  throw data_error("{}: merged values reach {:.3g}, beyond the range of {}; merge with --dtype float32", name,
                   values.abs().max().item<double>(), io::to_safetensors_dtype(dtype));
}

/// The merge of one adapted module: W of the base checkpoint, A and B of the adapter.
class LoraMerge {
 public:
  /// `path` is the module's path in the model, `weight_name` the name of W in the base. `base` and
  /// `adapter` must outlive this object.
  LoraMerge(const io::CheckpointTensors& base, const AdapterTensors& adapter, const std::string& path,
            std::string weight_name)
      : base_tensors_(base),
        adapter_tensors_(adapter),
        weight_name_(std::move(weight_name)),
        adapter_tensor_prefix_(path + ".") {}

  const std::string& weight_name() const { return weight_name_; }

  /// Returns W + scale · B A in `dtype` and adds the effect of rounding to `stats`. Throws
  /// UserError (kBadData) if values overflow.
  at::Tensor compute_merged_weight(const nn::LoraSettings& settings, at::ScalarType dtype, MergeStats& stats) const {
    const at::Tensor weight = base_tensors_.tensor(weight_name_);
    at::Tensor merged_weight =
        at::mm(load_lora_tensor(kLoraBSuffix), load_lora_tensor(kLoraASuffix)).mul_(settings.scale()).add_(weight);
    // DoRA: m · V / ‖V‖ by rows, for V = W + scale · B A and the magnitudes m [rows].
    if (settings.use_dora)
      merged_weight.mul_((load_lora_tensor(kLoraMagnitudeSuffix) / nn::compute_row_norms(merged_weight)).unsqueeze(1));
    if (!describe_first_non_finite_value(merged_weight).empty()) {
      throw data_error(
          "{}: has non-finite values after merging the adapter; use an earlier checkpoint of the adapter, or check the "
          "base weights",
          weight_name_);
    }
    at::Tensor rounded_weight = cast_or_throw(merged_weight, dtype, weight_name_);
    const at::Tensor changed_mask = merged_weight.ne(weight);
    stats.num_changed_elements += changed_mask.count_nonzero().item<int64_t>();
    stats.num_rounded_away_elements +=
        rounded_weight.eq(weight).logical_and_(changed_mask).count_nonzero().item<int64_t>();
    return rounded_weight;
  }

 private:
  at::Tensor load_lora_tensor(std::string_view tensor) const {
    return adapter_tensors_.tensor(adapter_tensor_prefix_ + std::string(tensor)).to(at::kFloat);
  }

  const io::CheckpointTensors& base_tensors_;
  const AdapterTensors& adapter_tensors_;
  std::string weight_name_;
  std::string adapter_tensor_prefix_;  // path of the module and a dot
};

/// A tensor that replaces a tensor of the base or is added to them.
struct ReplacementTensor {
  std::vector<int64_t> shape;
  std::function<at::Tensor()> read;
};

/// Returns the tensors that are replaced as a whole, by their names in the base: modules_to_save,
/// and an output projection that becomes tied or untied. They read from `adapter` and `base`, which
/// must outlive the result. REQUIRES: check_adapter_tensors().
std::map<std::string, ReplacementTensor> collect_replacements(const AdapterTensors& adapter,
                                                              const io::CheckpointTensors& base,
                                                              const VisionLanguageModel& model) {
  std::map<std::string, ReplacementTensor> result;
  const auto add_replacement = [&](const std::string& name, std::vector<int64_t> shape,
                                   std::function<at::Tensor()> read) {
    result.insert_or_assign(name, ReplacementTensor{.shape = std::move(shape), .read = std::move(read)});
  };
  const auto make_adapter_reader = [&adapter](const std::string& name) {
    return [&adapter, name] { return adapter.tensor(name); };
  };
  for (const auto& parameter : model.parameters().all()) {
    if (!parameter.is_in_modules_to_save) continue;
    add_replacement(model.get_checkpoint_tensor_name(parameter.name), parameter.sizes().vec(),
                    make_adapter_reader(parameter.name));
  }
  const std::string output = model.get_checkpoint_tensor_name(find_output_module(model) + ".weight");
  const nn::Parameter* const tied_embedding = find_tied_embedding(model);
  if (tied_embedding != nullptr && tied_embedding->is_in_modules_to_save && base.contains(output)) {
    add_replacement(output, tied_embedding->sizes().vec(), make_adapter_reader(tied_embedding->name));
  }
  const bool lacks_output_weight = !base.contains(output) && !result.contains(output);
  if (model.parameters().lora()->unties_output && lacks_output_weight) {
    const auto& all_parameters = model.parameters().all();
    const auto embedding = std::ranges::find_if(all_parameters, [](const nn::Parameter& parameter) {
      return parameter.is_embedding && parameter.component == nn::Component::kLanguageModel;
    });
    const std::string name = model.get_checkpoint_tensor_name(embedding->name);
    add_replacement(output, base.info(name).shape, [&base, name] { return base.tensor(name); });
  }
  return result;
}

/// Adds the token that ends a turn in the adapter's chat template to eos_token_id of
/// generation_config.json.
void add_end_of_turn_token(const std::filesystem::path& base, const std::filesystem::path& adapter,
                           std::map<std::string, std::string>& files) {
  try {
    ProcessorSettings settings;
    settings.chat_template_folder = adapter;
    add_eos_token(load_processor(base, settings)->end_of_turn_id(), files);
  } catch (const UserError& error) {
    spdlog::warn("{}: cannot check that generation_config.json has the adapter's end-of-turn token: {}",
                 adapter.string(), error.what());
  }
}

/// Returns the base's config.json with `dtype` and the changes that the adapter makes to the model.
/// Returns the original bytes if nothing changes.
std::string make_merged_config(const std::filesystem::path& base, const VisionLanguageModel& model,
                               std::optional<at::ScalarType> dtype) {
  const auto path = base / "config.json";
  const std::string original_config = io::read_file(path);
  auto config = io::parse_ordered_json(make_saved_config(model, original_config, path.string(), dtype), path.string());
  const auto& lora = *model.parameters().lora();
  if (lora.unties_output) {
    spdlog::info(
        "{}: the adapter's embedding and output projection differ: tie_word_embeddings is set to false in config.json",
        lora.adapter.string());
  }
  if (lora.vocabulary_rows > 0) {
    spdlog::info("{}: the adapter has {} vocabulary rows, more than its base: vocab_size is set to that in config.json",
                 lora.adapter.string(), lora.vocabulary_rows);
    set_vocab_size(config, lora.vocabulary_rows);
  }
  const bool is_changed = config != io::parse_ordered_json(original_config, path.string());
  return is_changed ? io::to_json_string(config, 2) + "\n" : original_config;
}

/// Returns the auxiliary files of base and adapter. The chat template is the adapter's, else the
/// base's.
std::map<std::string, std::string> make_merged_files(const std::filesystem::path& adapter,
                                                     const std::filesystem::path& base, std::string config) {
  auto files = merge_auxiliary_files(base, adapter);
  files["config.json"] = std::move(config);
  const auto adapter_templates = text::load_checkpoint_templates(adapter),
             base_templates = text::load_checkpoint_templates(base);
  for (const auto* templates : {&adapter_templates, &base_templates}) {
    const auto default_template = templates->find("default");
    if (default_template == templates->end()) continue;
    set_chat_template(default_template->second.jinja_source, files);
    break;
  }
  add_end_of_turn_token(base, adapter, files);
  return files;
}

/// Logs the share of the adapter's changes that rounding removed.
void log_rounding_loss(const MergeStats& stats, const std::filesystem::path& adapter, bool has_saved_modules) {
  if (stats.num_changed_elements == 0) {
    if (!has_saved_modules) {
      spdlog::warn(
          "{}: the adapter changes no weight (its lora_B are zero), so the result equals the base; check that "
          "training of the adapter has finished",
          adapter.string());
    }
    return;
  }
  const double rounded_away_fraction =
      static_cast<double>(stats.num_rounded_away_elements) / static_cast<double>(stats.num_changed_elements);
  // Merging trained adapters in bf16 usually loses a fifth of the changes. If half of them are
  // lost, the merged model is likely to differ visibly from the adapted one. Not tuned.
  constexpr double kHighRoundedAwayFraction = 0.5;
  const std::string text = fmt::format(
      "{}: of {} weights that the adapter changes, {} ({:.1f} %) round to the base value in the output data type",
      adapter.string(), format_rounded_count(stats.num_changed_elements),
      format_rounded_count(stats.num_rounded_away_elements), 100 * rounded_away_fraction);
  if (rounded_away_fraction > kHighRoundedAwayFraction) {
    spdlog::warn("{}; merge with --dtype float32 to keep the changes, or use the adapter without merging", text);
  } else if (stats.num_rounded_away_elements > 0) {
    spdlog::info("{}", text);
  }
}

}  // namespace

MergeStats merge_adapter(const std::filesystem::path& adapter, const std::filesystem::path& out,
                         const MergeSettings& merge_settings) {
  prepare_output_folder(out);
  const auto base = find_adapter_base(adapter, merge_settings.base);
  const auto settings = read_adapter_settings(adapter, base);
  if (!warn_on_base_fingerprint_mismatch(adapter, base)) warn_on_base_folder_mismatch(adapter, base);
  // Loading to the meta device reads names, shapes and dtypes, and detects all errors before
  // anything is written.
  const auto model = build_model(base, at::kMeta, at::kFloat, settings);
  load_base_weights(*model, base, make_base_load_settings(settings));
  const AdaptableModules modules(*model, find_output_module(*model));
  const AdapterTensors tensors(adapter, &modules);
  check_adapter_tensors(*model, tensors);
  check_adapter_values(*model, tensors);
  const io::CheckpointTensors weights(base);
  std::vector<LoraMerge> lora_merges;
  for (const auto& path : settings.target_modules) {
    lora_merges.emplace_back(weights, tensors, path, model->get_checkpoint_tensor_name(path + ".weight"));
  }
  auto replacements = collect_replacements(tensors, weights, *model);
  std::string config = make_merged_config(base, *model, merge_settings.dtype);
  const auto get_output_dtype = [&merge_settings](at::ScalarType stored_dtype) {
    return merge_settings.dtype && c10::isFloatingType(stored_dtype) ? *merge_settings.dtype : stored_dtype;
  };

  // Computed on demand, so that memory holds one tensor at a time.
  MergeStats stats;
  io::LazyTensors merged_tensors;
  for (const auto& name : weights.names()) {
    const io::TensorInfo& info = weights.info(name);
    const at::ScalarType dtype = get_output_dtype(info.dtype);
    io::LazyTensor& tensor = merged_tensors.emplace_back(
        io::LazyTensor{.name = name, .dtype = dtype, .shape = info.shape, .materialize = {}, .on_written = {}});
    tensor.on_written = [&weights, name] { weights.release(name); };
    const auto lora_merge = std::ranges::find(lora_merges, name, &LoraMerge::weight_name);
    if (lora_merge != lora_merges.end()) {
      tensor.materialize = [&lora_merge = *lora_merge, &settings, dtype, &stats] {
        return lora_merge.compute_merged_weight(settings, dtype, stats);
      };
    } else if (const auto replacement = replacements.extract(name); !replacement.empty()) {
      tensor.shape = replacement.mapped().shape;
      tensor.materialize = [read = replacement.mapped().read, dtype, name] {
        return cast_or_throw(read(), dtype, name);
      };
    } else {
      tensor.materialize = [&weights, name, dtype] { return cast_or_throw(weights.tensor(name), dtype, name); };
    }
  }
  // Modules that the adapter adds to the base, such as a new projector.
  for (auto& [name, tensor] : replacements) {
    const at::ScalarType dtype = get_output_dtype(tensor.read().scalar_type());
    merged_tensors.push_back(
        {.name = name,
         .dtype = dtype,
         .shape = tensor.shape,
         .materialize = [read = tensor.read, dtype, name = name] { return cast_or_throw(read(), dtype, name); },
         .on_written = {}});
  }
  io::AtomicDirectory folder(out);
  for (const auto& [name, content] : make_merged_files(adapter, base, std::move(config))) {
    write_auxiliary_file(folder.path(), name, content);
  }
  io::write_checkpoint_tensors(folder.path(), merged_tensors, io::kDefaultMaxShardBytes);
  folder.commit();
  log_rounding_loss(stats, adapter, /*has_saved_modules=*/!settings.modules_to_save.empty());
  return stats;
}

}  // namespace vlmtrain::models
