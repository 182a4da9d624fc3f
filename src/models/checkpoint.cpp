#include "vlmtrain/models/checkpoint.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_set>

#include "models/registry.h"
#include "models/weights.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/rng.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/memory/place.h"

namespace vlmtrain::models {

namespace {

/// What a checkpoint holds beside config.json and the weights; a file that `source` lacks is left out.
constexpr const char* kCompanionFiles[] = {"tokenizer.json",
                                           "tokenizer_config.json",
                                           "special_tokens_map.json",
                                           "added_tokens.json",
                                           "vocab.json",
                                           "merges.txt",
                                           "tokenizer.model",
                                           "preprocessor_config.json",
                                           "processor_config.json",
                                           "chat_template.jinja",
                                           "chat_template.json",
                                           "generation_config.json",
                                           "image_processor_config.json"};

constexpr std::string_view kTiedOutput = "lm_head.weight";

const char* dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "float32";
    case at::kBFloat16:
      return "bfloat16";
    case at::kHalf:
      return "float16";
    default:
      throw InternalError("weights of an unknown dtype");
  }
}

std::string shape_text(at::IntArrayRef sizes) {
  return fmt::format("[{}]", fmt::join(sizes, ", "));
}

}  // namespace

std::unique_ptr<VisionLanguageModel> build_model(const std::filesystem::path& folder, at::Device device,
                                                 at::ScalarType dtype) {
  const memory::InComponent weights(memory::Component::kWeights);
  const auto config = io::read_json(folder / "config.json");
  return family_of(config, folder).build(config, folder, at::TensorOptions(dtype).device(device));
}

std::unique_ptr<Processor> load_processor(const std::filesystem::path& folder, const ProcessorSettings& settings) {
  const auto config = io::read_json(folder / "config.json");
  return family_of(config, folder).load_processor(config, folder, settings);
}

void load_weights(VisionLanguageModel& model, const std::filesystem::path& folder) {
  const at::NoGradGuard no_gradients;
  const io::CheckpointTensors checkpoint(folder);
  std::vector<std::string> problems;
  std::unordered_set<std::string> wanted;
  for (const auto& parameter : model.parameters().all()) {
    wanted.insert(parameter.name);
    if (!checkpoint.contains(parameter.name)) {
      problems.push_back(fmt::format("missing: {}", parameter.name));
      continue;
    }
    const auto& shape = checkpoint.info(parameter.name).shape;
    if (parameter.tensor.sizes() != at::IntArrayRef(shape)) {
      problems.push_back(fmt::format("{} has shape {}, the config asks for {}", parameter.name, shape_text(shape),
                                     shape_text(parameter.tensor.sizes())));
    }
  }
  for (const auto& name : checkpoint.names()) {
    // Some checkpoints with tied embeddings carry the output projection once more.
    if (!wanted.contains(name) && name != kTiedOutput) problems.push_back(fmt::format("unexpected: {}", name));
  }
  if (!problems.empty()) {
    const size_t total = problems.size();
    problems.resize(std::min<size_t>(total, 20));
    throw data_error("{}: the weights do not match config.json ({} differences):\n  {}{}", folder.string(), total,
                     fmt::join(problems, "\n  "), total > problems.size() ? "\n  …" : "");
  }
  for (const auto& parameter : model.parameters().all()) {
    parameter.tensor.detach().copy_(checkpoint.tensor(parameter.name));
  }
}

void initialize_weights(VisionLanguageModel& model, uint64_t seed) {
  const at::NoGradGuard no_gradients;
  for (const auto& parameter : model.parameters().all()) {
    const auto& [mean, deviation] = parameter.initial;
    at::Tensor weight = parameter.tensor.detach();
    if (deviation == 0) {
      weight.fill_(mean);
      continue;
    }
    auto generator = at::make_generator<at::CPUGeneratorImpl>(stream_seed(seed, parameter.name));
    weight.copy_(at::empty(weight.sizes(), at::kFloat).normal_(mean, deviation, generator));
  }
}

io::NamedTensors weights_of(const VisionLanguageModel& model) {
  io::NamedTensors weights;
  for (const auto& parameter : model.parameters().all()) {
    weights.emplace_back(parameter.name, parameter.tensor.detach());
  }
  return weights;
}

void save_checkpoint(const VisionLanguageModel& model, const std::filesystem::path& source,
                     const std::filesystem::path& out, int64_t max_shard_bytes) {
  auto config = io::read_ordered_json(source / "config.json");
  const char* const dtype_key = config.contains("torch_dtype") ? "torch_dtype" : "dtype";
  config[dtype_key] = dtype_name(model.parameters().options().dtype().toScalarType());
  io::write_file(out / "config.json", config.dump(2) + "\n");
  for (const char* name : kCompanionFiles) {
    if (std::filesystem::exists(source / name)) io::write_file(out / name, io::read_file(source / name));
  }
  io::write_checkpoint_tensors(out, weights_of(model), max_shard_bytes);
}

}  // namespace vlmtrain::models
