// Tests the minimum that plans report. Plans random jobs as command lines, with synthetic samples
// and with data sets (images of many sizes, folders of frames as videos). For each plan that does
// not fit:
//
//   - settings that a user could choose instead, at random and around the plan's own, must not need
//     less, except for half a percent: no search can predict how a few blocks fit into the
//     allocator's pages of 20 MiB;
//   - each suggestion, appended to the command as printed, must make a plan that fits.
//
//   plan_least [jobs] [seed] [first job] > lines.jsonl
//
// Writes a JSON line per job, and a summary to stderr; exit code 1 if one is wrong.

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "app/plan_samples/plan_request.h"
#include "app/process/model_folder.h"
#include "app/settings/command_line.h"
#include "planner/search/config_search.h"
#include "planner/search/plan_evaluator.h"
#include "random_jobs.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/checkpoint.h"

namespace vlmtrain {

namespace {

constexpr int kRandomChoices = 8;
/// Fraction of the minimum by which other settings may need less.
constexpr double kTolerance = 0.005;

using Arguments = std::vector<std::string>;

/// A preset, and the preset whose tokenizer measures its data sets; empty: no data sets.
struct Model {
  const char* name;
  const char* tokenizer;
};

constexpr Model kModels[] = {{"smolvlm-256m", "smolvlm-tiny"},     {"smolvlm-500m", "smolvlm-tiny"},
                             {"smolvlm-2.2b", "smolvlm-tiny"},     {"nanovlm-460m", ""},
                             {"qwen2-vl-2b", "qwen2.5-vl-tiny"},   {"qwen2.5-vl-3b", "qwen2.5-vl-tiny"},
                             {"qwen2.5-vl-7b", "qwen2.5-vl-tiny"}, {"llava-1.5-7b", "llava-tiny"}};

/// Folders with the files of models that `plan` needs, with a tokenizer for the ids of config.json.
void write_models(const std::filesystem::path& folder) {
  for (const Model& model : kModels) {
    std::filesystem::create_directories(folder / model.name);
    models::write_preset_config(model.name, folder / model.name);
    if (std::string_view(model.tokenizer).empty()) continue;
    const auto tiny = folder / "tiny" / model.name;
    std::filesystem::create_directories(tiny);
    models::write_preset_config(model.tokenizer, tiny);
    std::filesystem::copy_file(tiny / "tokenizer.json", folder / model.name / "tokenizer.json");
    auto config = io::read_json(folder / model.name / "config.json");
    const auto tiny_config = io::read_json(tiny / "config.json");
    for (const auto& [key, value] : tiny_config.items()) {
      if (key.ends_with("token_id") || key == "image_token_index") config[key] = value;
    }
    io::write_file(folder / model.name / "config.json", config.dump());
    std::filesystem::remove(folder / model.name / "added_tokens.json");
  }
}

// -- Data sets: images with a header but without pixels, because plans read only the header.

uint32_t compute_crc(const std::string& bytes) {
  uint32_t crc = 0xffffffffU;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xedb88320U : 0);
  }
  return ~crc;
}

std::string to_big_endian(uint32_t number) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(number >> shift & 0xff);
  return bytes;
}

std::string make_png_chunk(const std::string& type, const std::string& content) {
  return to_big_endian(static_cast<uint32_t>(content.size())) + type + content +
         to_big_endian(compute_crc(type + content));
}

void write_png(const std::filesystem::path& file, int64_t width, int64_t height) {
  const std::string header = to_big_endian(static_cast<uint32_t>(width)) +
                             to_big_endian(static_cast<uint32_t>(height)) + std::string("\x08\x02\0\0\0", 5);
  io::write_file(file, "\x89PNG\r\n\x1a\n" + make_png_chunk("IHDR", header) + make_png_chunk("IDAT", "\x78\x9c") +
                           make_png_chunk("IEND", ""));
}

constexpr std::array<std::pair<int64_t, int64_t>, 10> kImageSizes{{{64, 64},
                                                                   {320, 240},
                                                                   {512, 512},
                                                                   {640, 480},
                                                                   {1024, 768},
                                                                   {1200, 1600},
                                                                   {2000, 1000},
                                                                   {2400, 2400},
                                                                   {4000, 3000},
                                                                   {900, 90}}};
constexpr std::array<int64_t, 3> kVideoFrames{6, 16, 48};

void write_media(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  for (size_t i = 0; i < kImageSizes.size(); ++i) {
    write_png(folder / fmt::format("{}.png", i), kImageSizes[i].first, kImageSizes[i].second);
  }
  for (const int64_t frames : kVideoFrames) {
    const auto video = folder / fmt::format("video{}", frames);
    std::filesystem::create_directories(video);
    for (int64_t frame = 0; frame < frames; ++frame) write_png(video / fmt::format("{:03}.png", frame), 480, 360);
  }
}

nlohmann::json make_random_record(Random& random, int64_t number, int64_t max_images, bool has_videos) {
  nlohmann::json record{{"id", fmt::format("sample-{}", number)}};
  std::string question;
  const auto make_words = [&](int64_t count) {
    std::string text;
    for (int64_t i = 0; i < count; ++i) text += " word";
    return text;
  };
  if (has_videos && random.with_chance(0.5)) {
    record["video"] = fmt::format("video{}", random.pick(kVideoFrames));
    question = "<video>\n";
  } else {
    auto images = nlohmann::json::array();
    for (int64_t count = random.between(0, max_images); count > 0; --count) {
      images.push_back(fmt::format("{}.png", random.between(0, std::ssize(kImageSizes) - 1)));
      question += "<image>\n";
    }
    if (!images.empty()) record["image"] = images;
  }
  question += "What" + make_words(random.between(1, 200)) + "?";
  record["conversations"] = {{{"from", "human"}, {"value", question}},
                             {{"from", "gpt"}, {"value", "It is" + make_words(random.between(1, 300)) + "."}}};
  return record;
}

void write_data_set(Random& random, const std::filesystem::path& file, bool supports_videos) {
  const int64_t max_images = random.between(1, 5);
  const bool has_videos = supports_videos && random.with_chance(0.4);
  auto records = nlohmann::json::array();
  for (int64_t count = random.between(3, 40); count > 0; --count) {
    records.push_back(make_random_record(random, count, max_images, has_videos));
  }
  io::write_file(file, records.dump());
}

// -- Jobs as command lines.

Arguments make_random_job(Random& random, const std::filesystem::path& folder, int64_t number) {
  const Model& model = kModels[static_cast<size_t>(random.between(0, std::ssize(kModels) - 1))];
  const auto path = folder / model.name;
  Arguments arguments{"--model", path.string()};
  const auto add = [&](std::initializer_list<std::string> values) { arguments.insert(arguments.end(), values); };
  constexpr const char* kSizes[] = {"2", "3", "4", "6", "8", "10", "12", "16", "24", "32"};
  constexpr const char* kGpuNames[] = {"rtx4090", "a100-40", "l4", "a6000", "rtx3060"};
  if (random.with_chance(0.8)) {
    add({"--gpu-gb", random.pick(kSizes)});
  } else {
    const std::string gpu = random.pick(kGpuNames);
    add({"--gpu", memory::find_gpu_spec(gpu) != nullptr ? gpu : "rtx4090"});
  }
  const bool lora = random.with_chance(0.6);
  if (random.with_chance(0.5)) {
    add({"--finetune", lora ? "lora" : "full"});
  } else if (lora) {
    add({fmt::format("lora.rank={}", random_rank(random))});
  }
  if (lora && random.with_chance(0.3)) add({"--quantization", random.with_chance(0.7) ? "nf4" : "int8"});
  if (random.with_chance(0.15)) add({"--precision", random.with_chance(0.5) ? "fp16" : "fp32"});
  if (random.with_chance(0.2)) add({"--optimizer-states", random.with_chance(0.5) ? "8bit" : "bf16"});
  if (random.with_chance(0.2)) add({"model.freeze_vision_tower=true"});
  if (random.with_chance(0.3)) add({"--mode", random.pick(std::to_array({"conservative", "aggressive"}))});
  if (random.with_chance(0.1)) add({"--limit-gb", fmt::format("{}", random.between(2, 20))});
  const int64_t global = random.pick(kGlobalBatches);
  add({"--global-batch", std::to_string(global)});
  if (random.with_chance(0.15)) add({"--micro-batch", std::to_string(random.pick(planner::find_divisors(global)))});
  if (random.with_chance(0.15)) add({"--recompute", random.pick(std::to_array({"none", "all", "5", "3+7"}))});
  if (random.with_chance(0.1)) add({"memory.vision_tiles_per_pass=4"});
  if (random.with_chance(0.1)) add({"memory.loss_chunk_rows=512"});
  if (std::string_view(model.tokenizer).empty() || random.with_chance(0.4)) {
    add({"--images", std::to_string(random.between(0, 6)), "--image-size",
         fmt::format("{}x{}", random.pick(kSides), random.pick(kSides)), "--text-tokens",
         std::to_string(random.between(66, 3000)), "data.max_length=1000000"});
  } else {
    const auto file = folder / "media" / fmt::format("{}.json", number);
    write_data_set(random, file, std::string_view(model.name).starts_with("qwen"));
    add({"data.train=" + file.string()});
    if (random.with_chance(0.2)) add({fmt::format("data.image_max_pixels={}", random.between(300, 1500) * 1000)});
  }
  return arguments;
}

app::PlanArguments parse_arguments(Arguments arguments) {
  arguments.insert(arguments.begin(), "plan");
  app::CommandLine command_line;
  VLMTRAIN_CHECK(!command_line.parse(std::move(arguments)), "invalid arguments");
  return command_line.arguments().plan;
}

// -- Checks of a plan that does not fit.

/// Settings that a user could choose for unconstrained options.
std::vector<planner::StepConfig> make_alternatives(Random& random, const planner::PlanRequest& request,
                                                   const planner::Plan& plan) {
  using BlockCounts = models::RecomputeBlockCounts;
  const BlockCounts all{.vision = plan.detail.num_vision_blocks, .language = plan.detail.num_language_blocks};
  const planner::StepConstraints& fixed = request.constraints;
  std::vector<planner::StepConfig> list;
  const auto add = [&](planner::StepConfig step_config) {
    if (fixed.micro_batch_size) step_config.micro_batch_size = *fixed.micro_batch_size;
    if (!fixed.recompute.is_auto()) step_config.recompute = fixed.recompute.resolve_block_counts(all);
    if (fixed.vision_tiles_per_pass) step_config.vision_tiles_per_pass = *fixed.vision_tiles_per_pass;
    if (fixed.loss_chunk_rows) step_config.loss_chunk_rows = *fixed.loss_chunk_rows;
    step_config.expandable_segments = fixed.expandable_segments;
    const bool is_known = std::find(list.begin(), list.end(), step_config) != list.end();
    if (!is_known && step_config != plan.best_estimate.step_config) list.push_back(step_config);
  };
  const auto add_variants = [&](auto planner::StepConfig::*choice, const auto&... values) {
    const auto add_with_value = [&](const auto& value) {
      planner::StepConfig step_config = plan.best_estimate.step_config;
      step_config.*choice = value;
      add(step_config);
    };
    (add_with_value(values), ...);
  };
  const int64_t tiles = std::max<int64_t>(2, plan.worst_batch.shapes.front().pixel_rows);
  add_variants(&planner::StepConfig::recompute, BlockCounts{}, BlockCounts{all.vision, 0}, BlockCounts{0, all.language},
               BlockCounts{all.vision, all.language - 1}, BlockCounts{all.vision - 1, all.language});
  add_variants(&planner::StepConfig::vision_tiles_per_pass, int64_t{0}, int64_t{1}, int64_t{2}, tiles / 2, tiles - 1);
  add_variants(&planner::StepConfig::loss_chunk_rows, int64_t{1}, int64_t{2}, int64_t{16}, int64_t{128}, int64_t{1024},
               int64_t{8192});
  if (request.workload.samples_per_rank() > 1) add_variants(&planner::StepConfig::micro_batch_size, int64_t{2});
  for (int i = 0; i < kRandomChoices; ++i) {
    add({.micro_batch_size =
             random.with_chance(0.7) ? 1 : random.pick(planner::find_divisors(request.workload.samples_per_rank())),
         .recompute = {random.between(0, all.vision), random.between(0, all.language)},
         .vision_tiles_per_pass = random.with_chance(0.5) ? random.between(1, tiles) : 0,
         .loss_chunk_rows = int64_t{1} << random.between(0, 12)});
  }
  return list;
}

struct Summary {
  int64_t planned = 0, num_unfit = 0, data_sets = 0, num_alternatives = 0, num_lower = 0, num_suggestions = 0,
          num_failed_suggestions = 0, num_without_suggestions = 0, errors = 0, failures = 0;
  double refused_seconds = 0, fitting_seconds = 0, worst_seconds = 0;
  int64_t num_slightly_lower = 0;
  double largest_share = 0;
};

void compare_with_alternatives(Random& random, const planner::PlanRequest& request, const planner::Plan& plan,
                               nlohmann::ordered_json& report, Summary& summary) {
  planner::PlanEvaluator evaluator({.job = request.job,
                                    .target = request.target,
                                    .workload = request.workload,
                                    .limit_bytes = plan.limit.limit_bytes,
                                    .worst_cases = planner::PlanEvaluator::WorstCases::kAll});
  auto lower = nlohmann::ordered_json::array();
  for (const auto& step_config : make_alternatives(random, request, plan)) {
    const auto bytes = evaluator.measure_reserved_bytes(request.job, step_config, request.workload.worst_batches);
    ++summary.num_alternatives;
    if (!bytes || *bytes >= plan.best_estimate.peaks.reserved_bytes) continue;
    const int64_t difference = plan.best_estimate.peaks.reserved_bytes - *bytes;
    const double relative_difference =
        static_cast<double>(difference) / static_cast<double>(plan.best_estimate.peaks.reserved_bytes);
    ++(relative_difference > kTolerance ? summary.num_lower : summary.num_slightly_lower);
    summary.largest_share = std::max(summary.largest_share, relative_difference);
    lower.push_back({{"micro_batch_size", step_config.micro_batch_size},
                     {"recompute", {step_config.recompute.vision, step_config.recompute.language}},
                     {"vision_tiles_per_pass", step_config.vision_tiles_per_pass},
                     {"loss_chunk_rows", step_config.loss_chunk_rows},
                     {"less_bytes", difference}});
  }
  report["less"] = lower;
}

void check_suggestions(const Arguments& arguments, const planner::Plan& plan, nlohmann::ordered_json& report,
                       Summary& summary) {
  auto failed = nlohmann::ordered_json::array();
  Arguments suggestions;
  for (const auto& suggestion : plan.suggestions) {
    if (suggestion.arguments.empty()) continue;
    Arguments extended = arguments;
    extended.insert(extended.end(), suggestion.arguments.begin(), suggestion.arguments.end());
    suggestions.push_back(suggestion.text());
    ++summary.num_suggestions;
    std::string outcome = "does not fit";
    try {
      app::PlanInput input = app::make_plan_input(parse_arguments(extended));
      input.request.with_suggestions = false;
      if (planner::make_plan(input.request).fits) outcome.clear();
    } catch (const UserError& error) {
      outcome = error.what();
    }
    if (outcome.empty()) continue;
    ++summary.num_failed_suggestions;
    failed.push_back({{"suggestion", suggestion.text()}, {"outcome", outcome}});
  }
  summary.num_without_suggestions += suggestions.empty();
  report["suggestions"] = suggestions;
  report["failed_remedies"] = failed;
}

nlohmann::ordered_json check_plan(Random& random, const Arguments& arguments, Summary& summary) {
  nlohmann::ordered_json report{{"command", fmt::format("{}", fmt::join(arguments, " "))}};
  ++summary.planned;
  const app::PlanInput input = app::make_plan_input(parse_arguments(arguments));
  const planner::Plan plan = planner::make_plan(input.request);
  const bool from_data = !plan.worst_batch.first_sample_id.empty();
  summary.data_sets += from_data;
  summary.worst_seconds = std::max(summary.worst_seconds, plan.planning_stats.seconds);
  (plan.fits ? summary.fitting_seconds : summary.refused_seconds) += plan.planning_stats.seconds;
  report["fits"] = plan.fits;
  report["plan_seconds"] = plan.planning_stats.seconds;
  report["dry_runs"] = plan.planning_stats.num_dry_runs;
  report["reserved_bytes"] = plan.best_estimate.peaks.reserved_bytes;
  report["limit_bytes"] = plan.limit.limit_bytes;
  report["chosen"] = {plan.best_estimate.step_config.micro_batch_size, plan.best_estimate.step_config.recompute.vision,
                      plan.best_estimate.step_config.recompute.language,
                      plan.best_estimate.step_config.vision_tiles_per_pass,
                      plan.best_estimate.step_config.loss_chunk_rows};
  if (plan.fits) return report;
  ++summary.num_unfit;
  compare_with_alternatives(random, input.request, plan, report, summary);
  check_suggestions(arguments, plan, report, summary);
  return report;
}

int run(int64_t jobs, uint64_t seed, int64_t first) {
  const app::TemporaryFolder folder;
  write_models(folder.path());
  write_media(folder.path() / "media");
  Summary summary;
  for (int64_t i = first; i < first + jobs; ++i) {
    Random random(seed, i);
    const Arguments arguments = make_random_job(random, folder.path(), i);
    nlohmann::ordered_json report;
    try {
      report = check_plan(random, arguments, summary);
    } catch (const UserError& error) {
      report = {{"command", fmt::format("{}", fmt::join(arguments, " "))}, {"error", error.what()}};
      ++summary.errors;
    } catch (const InternalError& error) {
      report = {{"command", fmt::format("{}", fmt::join(arguments, " "))}, {"internal_error", error.what()}};
      ++summary.failures;
    }
    fmt::print("{}\n", report.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    std::fflush(stdout);
  }
  fmt::print(
      stderr,
      "{} jobs, {} with data sets; {} were rejected with an error, {} failed, {} plans do not fit. Of {} other choices "
      "{} "
      "need less by more than {:.1f} %, {} by less, {:.2f} % at most; of {} suggestions {} do not make it fit; {} "
      "plans "
      "have none. {:.2f} s a plan that fits, {:.2f} s one that does not, {:.2f} s at most\n",
      summary.planned, summary.data_sets, summary.errors, summary.failures, summary.num_unfit, summary.num_alternatives,
      summary.num_lower, 100 * kTolerance, summary.num_slightly_lower, 100 * summary.largest_share,
      summary.num_suggestions, summary.num_failed_suggestions, summary.num_without_suggestions,
      summary.fitting_seconds / static_cast<double>(std::max<int64_t>(1, summary.planned - summary.num_unfit)),
      summary.refused_seconds / static_cast<double>(std::max<int64_t>(1, summary.num_unfit)), summary.worst_seconds);
  return summary.num_lower + summary.num_failed_suggestions + summary.failures == 0 ? 0 : 1;
}

}  // namespace

}  // namespace vlmtrain

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "dry-run") {  // the dry-run process, as in vlmtrain
    vlmtrain::planner::serve_dry_runs();
    return 0;
  }
  const int64_t jobs = argc > 1 ? std::atoll(argv[1]) : 300;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  const int64_t first = argc > 3 ? std::atoll(argv[3]) : 0;
  return vlmtrain::run(jobs, seed, first);
}
