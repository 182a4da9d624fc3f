#include "vlmtrain/engine/generation/generate.h"

#include <unistd.h>

#include <c10/core/Device.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/commands/commands.h"
#include "app/commands/generate_input.h"
#include "app/masks/mask_files.h"
#include "app/process/device.h"
#include "app/settings/arguments.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/engine/generation/evaluation.h"
#include "vlmtrain/engine/settings/options.h"
#include "vlmtrain/evaluation/scores.h"
#include "vlmtrain/image/image_file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/record.h"
#include "vlmtrain/models/adapter.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/checkpoint_info.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/train/components.h"
#include "vlmtrain/train/hub_references.h"
#include "vlmtrain/train/run_checkpoint.h"
#include "vlmtrain/train/saved_settings.h"

namespace vlmtrain::app {

namespace {

/// Maximum tokens of the prompt: the default of data.max_length.
constexpr int64_t kMaxPromptTokens = 8192;

void check_sampling_settings(const engine::SamplingSettings& sampling) {
  engine::check_sampling_ranges(sampling);
  if (sampling.temperature == 0 && (sampling.top_k != 0 || sampling.top_p != 1)) {
    throw usage_error("--top-k and --top-p: require sampling; also give --temperature above 0, such as 1");
  }
}

/// Returns the result of `function`, which reads the media of the prompt. Errors on files of
/// --image, --video and --volume name the flag in place of the sample.
template <class Function>
auto convert_prompt_errors(const GenerateArguments& arguments, const Function& function) {
  try {
    return function();
  } catch (const data::SampleError& error) {
    constexpr std::string_view kPromptErrorPrefix = "sample prompt: ";  // the id of make_record()
    const std::string message = error.what();
    if (!arguments.data.empty() || !message.starts_with(kPromptErrorPrefix)) throw;
    const std::string problem = message.substr(kPromptErrorPrefix.size());
    for (const auto& [flag, files] : {std::pair{"--image", &arguments.images}, std::pair{"--video", &arguments.videos},
                                      std::pair{"--volume", &arguments.volumes}}) {
      for (const std::string& file : *files) {
        if (problem.starts_with(file)) throw UserError(error.code(), fmt::format("{} {}", flag, problem));
      }
    }
    throw;
  }
}

/// Throws UserError if the prompt has too many tokens. Reads only the headers of media, so it is
/// fast and runs before the model is loaded.
void check_prompt_length(const GenerateArguments& arguments, const io::Record& record,
                         const models::Processor& processor, int64_t max_length) {
  const std::string source = arguments.data.empty() ? "--prompt" : fmt::format("--record {}", record.id);
  constexpr const char* kAdvice = "shorten it, or give fewer or smaller images and videos";
  try {
    const data::Sample sample =
        convert_prompt_errors(arguments, [&] { return processor.process_prompt_headers(record, 0); });
    if (const auto& shrunk = sample.shrink_info) {
      spdlog::info("the prompt has {} tokens, so its images and videos are downscaled: {} tokens remain",
                   shrunk->tokens, shrunk->tokens_after);
    }
  } catch (const data::SampleTooLongError& error) {
    if (error.tokens() <= max_length) {
      throw usage_error("{}: has {} tokens, but the model has {} positions; {}", source, error.tokens(),
                        processor.max_positions(), kAdvice);
    }
    throw usage_error("{}: has {} tokens, images and videos included, more than {}={}; {}, or raise it", source,
                      error.tokens(), keys::data::kMaxLength, max_length, kAdvice);
  }
}

/// Returns the settings of the processor: those of the run that wrote the checkpoint, changed by
/// arguments such as data.volume.spacing=1.
models::ProcessorSettings load_processor_settings(const GenerateArguments& arguments,
                                                  const std::filesystem::path& checkpoint) {
  data::DataOptions options;
  options.chat_template = arguments.chat_template;
  train::resolve_chat_template_date(options, checkpoint);
  options.max_length = kMaxPromptTokens;
  const auto media_settings = train::parse_media_settings(arguments.data_settings, options);
  options.volume = train::resolve_volume_options(checkpoint, media_settings.other_settings);
  train::apply_saved_media_settings(checkpoint, options, media_settings.media_keys);
  return train::make_processor_settings(options);
}

/// The predicted masks of an answer and the image that they belong to.
struct AnswerMasks {
  at::Tensor image;                         ///< uint8 [3, height, width]
  std::vector<at::Tensor> predicted_masks;  ///< uint8 [height, width] of 0 and 1
};

/// Returns the masks at the size of the record's first image. `sample` is the result of
/// Processor::make_mask_prompt() for the answer. The logits are [masks, height, width] at the size
/// of the mask model's output.
AnswerMasks predict_answer_masks(const models::VisionLanguageModel& model, const io::Record& record,
                                 const data::Sample& sample, at::Device device) {
  AnswerMasks masks{.image = image::decode_image(record.images.front()), .predicted_masks = {}};
  const image::ImageSize size{.height = masks.image.size(1), .width = masks.image.size(2)};
  const at::Tensor logits = engine::predict_mask_logits(model, {sample}, {}, device);
  for (int64_t i = 0; i < sample.masks.count(); ++i) {
    masks.predicted_masks.push_back(evaluation::postprocess_mask(
        logits[i], sample.masks.pixels.size(-1), sample.masks.valid_regions[static_cast<size_t>(i)], size));
  }
  return masks;
}

/// Returns the true masks of the record's first image, uint8 [height, width]. Logs a warning and
/// returns none if they cannot be used.
std::vector<at::Tensor> load_true_masks(const models::Processor& processor, const io::Record& record) {
  std::string problem = record.mask_problem;
  try {
    const auto masks = problem.empty() ? processor.load_masks(record) : std::vector<at::Tensor>{};
    std::vector<at::Tensor> first_image_masks;
    for (size_t i = 0; i < masks.size(); ++i) {
      if (record.masks[i].image_index == 0) first_image_masks.push_back(masks[i]);
    }
    if (problem.empty()) return first_image_masks;
  } catch (const UserError& error) {
    if (error.code() != ExitCode::kBadData) throw;
    problem = error.what();
  }
  spdlog::warn("the true masks of the record are not shown: {}", problem);
  return {};
}

/// Throws UserError (kUsage) if --mask-out is given but cannot be used. Runs before the model is
/// loaded, which takes long.
void check_mask_output(const GenerateArguments& arguments, const models::Processor& processor,
                       const io::Record& record) {
  if (arguments.mask_output_dir.empty()) return;
  check_predicts_masks(processor, arguments.checkpoint);
  if (record.images.empty()) {
    throw usage_error(
        "--mask-out: the input has no image for a mask; give one with --image, or a record of --data with one");
  }
  check_mask_folder(arguments.mask_output_dir);
}

/// Returns the masks of `answer`, token ids, as --json prints them: an array of objects. Writes the
/// masks to --mask-out if given. Without --mask-out and --json, returns an empty array without
/// computing masks.
nlohmann::ordered_json make_masks_json(const GenerateArguments& arguments, const models::VisionLanguageModel& model,
                                       const models::Processor& processor, const io::Record& record,
                                       const data::Sample& prompt, const std::vector<int64_t>& answer,
                                       at::Device device) {
  auto json = nlohmann::ordered_json::array();
  const std::string& folder = arguments.mask_output_dir;
  const auto sample = processor.make_mask_prompt(record, prompt, answer);
  if (!sample) {
    if (!folder.empty()) spdlog::info("the answer has no mask token: {} is unchanged", folder);
    return json;
  }
  const std::string mask_count_text = pluralize(sample->masks.count(), "mask");
  if (folder.empty() && !arguments.json) {
    spdlog::info("the answer has {}; --mask-out DIR writes {}", mask_count_text,
                 sample->masks.count() == 1 ? "it" : "them");
    return json;
  }
  const AnswerMasks masks = predict_answer_masks(model, record, *sample, device);
  const auto mask_paths = make_mask_paths(folder, masks.predicted_masks.size());
  if (!folder.empty()) {
    write_masks(folder, mask_paths, masks.image, masks.predicted_masks, load_true_masks(processor, record));
    spdlog::info("{}: {} and overlay.png written", folder, mask_count_text);
  }
  for (size_t i = 0; i < masks.predicted_masks.size(); ++i) {
    const at::Tensor& mask = masks.predicted_masks[i];
    const auto num_pixels = mask.sum().item<int64_t>();
    auto& mask_json = json.emplace_back(nlohmann::ordered_json::object());
    if (!folder.empty()) mask_json["file"] = mask_paths[i];
    mask_json["image"] = sample->masks.image_indices[i];
    mask_json["pixels"] = num_pixels;
    mask_json["share"] = static_cast<double>(num_pixels) / static_cast<double>(mask.numel());
  }
  return json;
}

}  // namespace

ExitCode generate(const GenerateArguments& parsed_arguments) {
  GenerateArguments arguments = parsed_arguments;
  const auto record_settings = train::extract_record_settings(arguments.data_settings);
  init_logging(/*quiet=*/false);
  check_sampling_settings(arguments.sampling);
  check_prompt_flags(arguments);
  const at::Device device = open_device(arguments.device);
  const auto checkpoint = train::resolve_checkpoint(train::fetch_model_folder(arguments.checkpoint));
  const auto base_and_adapter = models::resolve_base_and_adapter(checkpoint, train::fetch_model_folder(arguments.base));
  const std::filesystem::path &base = base_and_adapter.base, &adapter = base_and_adapter.adapter;
  auto processor_settings = load_processor_settings(arguments, checkpoint);
  processor_settings.chat_template_folder = adapter;
  const auto processor = models::load_processor(base, processor_settings);
  const io::Record record = arguments.data.empty()
                                ? make_record(arguments)
                                : load_record(arguments, train::load_record_settings(checkpoint, record_settings));
  check_mask_output(arguments, *processor, record);
  if (arguments.show_prompt) {
    const bool ends_before_answer = arguments.data.empty();
    const std::string text = convert_prompt_errors(arguments, [&] {
      return arguments.json ? format_prompt_json(*processor, record, ends_before_answer) + "\n"
                            : format_prompt(*processor, record, ends_before_answer);
    });
    fmt::print("{}", text);
    return ExitCode::kSuccess;
  }
  check_prompt_length(arguments, record, *processor, processor_settings.max_length);
  if (const auto keys = models::find_unapplied_generation_settings(checkpoint); !keys.empty()) {
    spdlog::info(
        "generation_config.json: {} {} applied by transformers' generate but not here; docs/how-to/generate.md lists "
        "the supported options",
        fmt::join(keys, ", "), keys.size() == 1 ? "is" : "are");
  }
  const auto model = models::load_model(checkpoint, device,
                                        engine::to_dtype(engine::parse_precision(arguments.precision).value()), base);
  const auto prompt = convert_prompt_errors(arguments, [&] { return processor->process_prompt(record, 0); });
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::vector<int64_t>> answers;
  generate_or_explain_oom(arguments.max_new_tokens, [&] {
    answers = engine::generate(*model, {prompt},
                               {.device = device,
                                .max_new_tokens = arguments.max_new_tokens,
                                .max_length = processor->max_positions(),
                                .eos_token_ids = models::load_eos_token_ids(base, *processor, adapter),
                                .sampling = arguments.sampling,
                                .use_cache = arguments.use_cache,
                                .require_finite_logits = true});
  });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (prompt.tokens() + std::ssize(answers[0]) >= processor->max_positions()) {
    spdlog::warn("the answer was truncated: with the prompt it has {} tokens, all positions of the model",
                 processor->max_positions());
  }
  const std::string text = processor->tokenizer().decode(answers[0], /*skip_special_tokens=*/true);
  if (!arguments.json) {
    // Control characters of an answer could change a terminal's state. A file or a pipe receives
    // the exact text.
    fmt::print("{}\n", isatty(STDOUT_FILENO) == 1 ? to_printable_lines(text) : text);
    std::fflush(stdout);  // so that log messages about masks follow the answer
  }
  nlohmann::ordered_json json{{"text", text},
                              {"token_ids", answers[0]},
                              {"prompt_tokens", prompt.tokens()},
                              {"seconds", seconds},
                              {"tokens_per_second", static_cast<double>(answers[0].size()) / seconds}};
  if (processor->predicts_masks()) {
    json["masks"] = make_masks_json(arguments, *model, *processor, record, prompt, answers[0], device);
  }
  if (arguments.json) fmt::print("{}\n", io::to_json_string(json));
  return ExitCode::kSuccess;
}

}  // namespace vlmtrain::app
