#include <c10/core/Device.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "app/doctor/examination.h"
#include "app/process/device.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/data/data_set.h"
#include "vlmtrain/hub/settings.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/kernels/kernels.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/memory/host_link.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/models/synthetic_sample.h"
#include "vlmtrain/planner/backend.h"
#include "vlmtrain/planner/target.h"
#include "vlmtrain/planner/virtual_gpu.h"
#include "vlmtrain/train/checks.h"
#include "vlmtrain/train/components.h"
#include "vlmtrain/train/config.h"
#include "vlmtrain/train/custom_kernels.h"
#include "vlmtrain/train/hub_references.h"
#include "vlmtrain/train/smoke_run.h"

namespace vlmtrain::app {

namespace {

/// Number of samples to check. Errors of the data set as a whole appear in the first samples. Not
/// tuned.
constexpr int64_t kMaxCheckedSamples = 512;

/// Runs the checks that `train` runs before it plans and loads the model. Throws UserError.
void check_run_inputs(const train::Config& config, const DoctorContext& context, Section& section) {
  train::check_output_files(config, context.config);
  train::check_required_keys(config);
  const auto records = train::open_training_records(config);
  section.facts["samples"] = records->size();
  if (!config.data.eval.empty()) section.facts["eval_samples"] = train::open_evaluation_records(config)->size();
  const auto processor = models::load_processor(
      config.model.folder(), train::make_processor_settings(config.data, config.model.adapter_folder()));
  train::run_preflight_checks(config, *records);
  train::check_no_bad_samples(*records, *processor, config, config.data.train.name(), kMaxCheckedSamples);
  const io::CheckpointTensors weights(config.model.folder());
  section.facts["tensors"] = weights.names().size();
  section.ok(fmt::format("{}: its keys, the {} of {} and the checkpoint {} are valid for a run", context.config,
                         pluralize(records->size(), "sample"), config.data.train.name(), config.model.path));
}

/// Finds references to the Hub in the cache. Returns false with a warning if one is not there: the
/// doctor downloads nothing. Throws UserError if a run could not download it either. REQUIRES: this
/// is a child process, because the environment changes.
bool find_in_hub_cache(train::Config& config, const DoctorContext& context, Section& section) {
  const bool is_offline = hub::read_hub_settings().is_offline();
  setenv("HF_HUB_OFFLINE", "1", /*overwrite=*/1);
  try {
    train::fetch_hub_models(config, hub::ModelFiles::kWithWeights);
    train::fetch_hub_data(config);
    return true;
  } catch (const UserError& error) {
    if (is_offline || error.code() != ExitCode::kBadData) throw;
    section.warn(
        fmt::format("{}: names models or data of the Hub that are not in the cache, so they were not checked; run "
                    "`vlmtrain download --config {}` and the doctor again",
                    context.config, context.config));
    return false;
  }
}

}  // namespace

Section examine_config(const DoctorContext& context) {
  constexpr double kTimeoutSeconds = 60;  // not tuned
  return examine_in_subprocess({.name = "config",
                                .activity = fmt::format("reading {} and the files that it names", context.config),
                                .timeout_seconds = kTimeoutSeconds},
                               [&](Section& section) {
                                 train::Config config;
                                 train::declare_options(config).read(context.config, context.overrides);
                                 section.facts = {{"file", context.config},
                                                  {"output_dir", config.output.dir},
                                                  {"precision", engine::to_string(config.training.precision)},
                                                  {"model", config.model.path},
                                                  {"data", config.data.train.name()}};
                                 if (find_in_hub_cache(config, context, section))
                                   check_run_inputs(config, context, section);
                               });
}

namespace {

struct DryRunStats {
  int64_t steps = 0;
  double step_seconds = 0;     ///< of all steps together
  double seconds = 0;          ///< seconds of all dry runs, including the start of the model in the process
  int64_t reserved_bytes = 0;  ///< peak of the virtual GPU
};

/// Dry-runs steps of the model in `model` on a virtual GPU, in the planner's child process, for at
/// least `seconds` and at least once. Throws UserError, or an exception of planner::DryRunProcess.
DryRunStats measure_dry_run_steps(const std::filesystem::path& model, engine::Precision precision,
                                  const planner::VirtualGpu& virtual_gpu, double seconds) {
  // Steps per dry run: enough to include the allocator's reuse of memory. This number and the sizes
  // of the samples were chosen without measurement.
  constexpr int64_t kStepsPerDryRun = 4;
  const auto job = planner::make_job_with_precision({.model = model}, precision);
  const planner::SampleGroup samples{
      .shape = models::compute_sample_shape(model, {.text_tokens = 96, .label_tokens = 32}), .count = 4};
  planner::DryRunRequest request;
  request.step_config.micro_batch_size = 2;
  request.steps.assign(kStepsPerDryRun, {samples});
  planner::DryRunProcess process(job, virtual_gpu);
  DryRunStats result;
  const auto start = std::chrono::steady_clock::now();
  double elapsed_seconds = 0;
  do {
    const auto dry_run_result = process.dry_run(request);
    if (dry_run_result.ran_out_of_memory)
      throw run_error("a step of a tiny model ran out of memory on the virtual {}", virtual_gpu.gpu);
    result.steps += std::ssize(dry_run_result.steps);
    result.step_seconds += dry_run_result.seconds;
    result.reserved_bytes = dry_run_result.compute_max_peaks().reserved_bytes;
    elapsed_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  } while (elapsed_seconds < seconds);
  result.seconds = elapsed_seconds;
  return result;
}

}  // namespace

Section examine_planning(const DoctorContext& context) {
  // Failure is a warning: a run on a GPU continues without a plan, and one on the CPU needs no dry
  // run.
  return examine_in_subprocess(
      {.name = "planning", .activity = "a dry run of a step", .failure_severity = Severity::kWarn},
      [&](Section& section) {
        if (context.model.empty()) return section.warn("not tried: no writable folder for a small model; set TMPDIR");
        const auto result = measure_dry_run_steps(context.model, context.precision, {}, /*seconds=*/0);
        section.facts = {{"seconds", result.seconds}, {"reserved_bytes", result.reserved_bytes}};
        section.ok(
            fmt::format("a dry run of a step on a virtual H100, in a child process, took {:.1f} s", result.seconds));
      });
}

namespace {

constexpr double kSmokeRunSeconds = 1;  // on the device, and again on the CPU

nlohmann::ordered_json make_smoke_run_facts(const train::SmokeRunResult& run) {
  return {{"steps", run.steps},
          {"steps_per_second", run.steps_per_second},
          {"first_loss", run.first_loss},
          {"last_loss", run.last_loss}};
}

/// Returns the precision of `context`, or fp16 with a warning if the GPU does not support it. If a
/// configuration sets the unsupported precision, adds a failure and returns nothing.
std::optional<engine::Precision> choose_precision(const memory::GpuSpec& gpu, const DoctorContext& context,
                                                  Section& section) {
  if (planner::supports_precision(gpu, context.precision)) return context.precision;
  const std::string text = fmt::format("{} does not support {}: set {}=fp16 or fp32", gpu.device_name,
                                       engine::to_string(context.precision), keys::training::kPrecision);
  if (!context.config.empty()) {
    section.fail(text);
    return std::nullopt;
  }
  section.warn(text);
  return engine::Precision::kFp16;
}

bool has_loss_decreased(const train::SmokeRunResult& run) {
  return std::isfinite(run.last_loss) && run.last_loss < run.first_loss;
}

/// A smoke run on a device, and the reference on the CPU in fp32.
struct SmokeRunComparison {
  std::string device_phrase;
  engine::Precision precision;
  const train::SmokeRunResult& actual;
  const train::SmokeRunResult& reference;
  train::SmokeRunTolerance tolerance;
};

constexpr const char* kOtherDeviceAdvice =
    "unset environment variables that select kernels and libraries, update the driver, or use another device";

/// Adds the finding that training gives the same results as the reference, or a failure.
void add_comparison_finding(const SmokeRunComparison& comparison, Section& section) {
  const auto& [device_phrase, precision, actual, reference, tolerance] = comparison;
  const auto deviation = train::compare_smoke_runs(actual, reference);
  section.facts["compared"] = true;
  section.facts["loss_difference"] = deviation.loss;
  section.facts["loss_tolerance"] = tolerance.loss;
  section.facts["gradient_difference"] = deviation.gradient;
  section.facts["gradient_tolerance"] = tolerance.gradient;
  section.facts["parameter"] = deviation.parameter;
  // Written so that NaN counts as different.
  const bool is_within_tolerance = deviation.loss <= tolerance.loss && deviation.gradient <= tolerance.gradient;
  const std::string difference_text =
      fmt::format("loss within {:.1e} and gradients within {:.1e} of the CPU's in fp32 (tolerance {:.1e} and {:.1e})",
                  deviation.loss, deviation.gradient, tolerance.loss, tolerance.gradient);
  const std::string speed_text =
      fmt::format("{:.1f} steps/s {} in {}, {:.1f} on the CPU in fp32", actual.steps_per_second, device_phrase,
                  engine::to_string(precision), reference.steps_per_second);
  if (is_within_tolerance && has_loss_decreased(actual))
    return section.ok(fmt::format("{}; {}", speed_text, difference_text));
  if (is_within_tolerance) {
    return section.fail(fmt::format(
        "training {} does not learn: the loss went from {:.3g} to {:.3g} in {} steps; {}; {}", device_phrase,
        actual.first_loss, actual.last_loss, actual.steps, difference_text, kOtherDeviceAdvice));
  }
  section.fail(
      fmt::format("training {} gives wrong results: the loss differs from that of fp32 on the CPU by {:.1e} (tolerance "
                  "{:.1e}), and gradients by {:.1e} (tolerance {:.1e}), most in {}; {}",
                  device_phrase, deviation.loss, tolerance.loss, deviation.gradient, tolerance.gradient,
                  deviation.parameter, kOtherDeviceAdvice));
}

/// Adds a warning if fp32 is faster than the 16-bit `precision`, which this CPU may only emulate.
void warn_if_fp32_is_faster(const train::SmokeRunResult& half_precision_run, const train::SmokeRunResult& fp32_run,
                            engine::Precision precision, Section& section) {
  // Smaller differences may be noise in one second of steps. Not tuned.
  constexpr double kMinSpeedup = 1.2;
  if (fp32_run.steps_per_second < kMinSpeedup * half_precision_run.steps_per_second) return;
  section.warn(fmt::format("{}=fp32 is {:.1f} times as fast as {} on this CPU, for a small model",
                           keys::training::kPrecision, fp32_run.steps_per_second / half_precision_run.steps_per_second,
                           engine::to_string(precision)));
}

void test_step_on_cpu(const DoctorContext& context, Section& section) {
  train::SmokeRunSettings settings{
      .model = context.model, .precision = engine::Precision::kFp32, .seconds = kSmokeRunSeconds};
  const auto reference = train::run_smoke_training(settings);
  section.facts["cpu_fp32"] = make_smoke_run_facts(reference);
  if (context.precision == engine::Precision::kFp32) {
    section.facts["compared"] = false;
    const auto text = fmt::format("{:.1f} steps/s on the CPU in fp32; the loss went from {:.3g} to {:.3g}",
                                  reference.steps_per_second, reference.first_loss, reference.last_loss);
    return has_loss_decreased(reference) ? section.ok(text)
                                         : section.fail(text + ", so it does not learn; " + kOtherDeviceAdvice);
  }
  settings.precision = context.precision;
  const auto actual = train::run_smoke_training(settings);
  section.facts["trial"] = make_smoke_run_facts(actual);
  add_comparison_finding({.device_phrase = "on the CPU",
                          .precision = context.precision,
                          .actual = actual,
                          .reference = reference,
                          .tolerance = train::get_smoke_run_tolerance(context.precision)},
                         section);
  warn_if_fp32_is_faster(actual, reference, context.precision, section);
}

/// `unavailable_reason` is the reason for which the library of custom kernels cannot be loaded.
void warn_about_missing_kernels(const std::string& unavailable_reason, Section& section) {
  section.warn(
      fmt::format("vlmtrain's custom kernels are missing, so ATen's slower ones are used: {}; scripts/setup.sh "
                  "installs nvcc, and a build with it compiles them",
                  unavailable_reason));
}

/// Adds a warning with the kernels that an environment variable disables, since a run with the same
/// environment would not use them either.
void warn_about_disabled_kernels(Section& section) {
  try {
    const auto disabled_kernels = train::read_disabled_kernels_variable();
    if (disabled_kernels.empty()) return;
    const std::string names = train::join_kernel_names(disabled_kernels);
    section.facts["custom_kernels"]["disabled"] = names;
    section.warn(fmt::format("VLMTRAIN_WITHOUT_KERNELS disables {}; ATen's operations are used instead", names));
  } catch (const UserError& error) {
    section.fail(error.what());
  }
}

/// Loads the custom kernels, which compares their results with ATen's. `device_phrase` is used in
/// messages, such as "on cuda:0".
void compare_kernels_with_aten(at::Device device, const std::string& device_phrase, Section& section) {
  const auto load_result = kernels::open_kernels(device);
  section.facts["custom_kernels"] = {{"problem", load_result.unavailable_reason},
                                     {"wrong", load_result.failure_messages}};
  warn_about_disabled_kernels(section);
  if (!load_result.unavailable_reason.empty())
    return warn_about_missing_kernels(load_result.unavailable_reason, section);
  for (const auto& problem : load_result.failure_messages) {
    section.warn(fmt::format("a custom kernel is disabled, because its results {} differ from ATen's: {}",
                             device_phrase, problem));
  }
  if (load_result.failure_messages.empty()) {
    section.ok(fmt::format("{} custom kernels {} give the same results as ATen's", kernels::list_kernels().size(),
                           device_phrase));
  }
}

/// Measures the link to host memory. memory.offload needs it and page-locked memory; other runs do not.
void measure_host_link(at::Device device, const std::string& device_name, Section& section) {
  try {
    const auto speed = memory::measure_host_link(device);
    section.facts["host_link"] = {
        {"in_bytes_per_second", speed.in}, {"out_bytes_per_second", speed.out}, {"both_bytes_per_second", speed.both}};
    section.ok(fmt::format("host memory to {}: {:.1f} GB/s in, {:.1f} GB/s out, {:.1f} GB/s each way at once",
                           device_name, speed.in / 1e9, speed.out / 1e9, speed.both / 1e9));
  } catch (const std::exception& error) {
    section.warn(fmt::format("the link to host memory was not measured, so {} may not work: {}", keys::memory::kOffload,
                             get_first_line(error.what())));
  }
}

void test_step_on_gpu(const DoctorContext& context, const std::string& device_name, Section& section) {
  const at::Device device = open_device(device_name);
  compare_kernels_with_aten(device, "on " + device_name, section);
  measure_host_link(device, device_name, section);
  const auto target = planner::make_target_gpu(memory::get_device_properties(device));
  const auto precision = choose_precision(*target.gpu, context, section);
  if (!precision) return;
  section.facts["precision"] = engine::to_string(*precision);
  train::SmokeRunSettings settings{
      .model = context.model, .device = device, .precision = *precision, .seconds = kSmokeRunSeconds};
  const auto actual = train::run_smoke_training(settings);
  settings.device = at::kCPU;
  settings.precision = engine::Precision::kFp32;
  const auto reference = train::run_smoke_training(settings);
  section.facts["trial"] = make_smoke_run_facts(actual);
  section.facts["cpu_fp32"] = make_smoke_run_facts(reference);
  add_comparison_finding({.device_phrase = "on " + device_name,
                          .precision = *precision,
                          .actual = actual,
                          .reference = reference,
                          .tolerance = train::get_smoke_run_tolerance(*precision)},
                         section);
}

void dry_run_on_virtual_gpu(const DoctorContext& context, Section& section) {
  const auto virtual_gpu = parse_virtual_gpu(context.device);
  const auto precision = choose_precision(*memory::find_gpu_spec(virtual_gpu->gpu), context, section);
  if (!precision) return;
  const std::string problem = kernels::find_kernel_library_error();
  section.facts["custom_kernels"] = {{"problem", problem}};
  warn_about_disabled_kernels(section);
  if (!problem.empty()) warn_about_missing_kernels(problem, section);
  const auto result = measure_dry_run_steps(context.model, *precision, *virtual_gpu, kSmokeRunSeconds);
  section.facts["precision"] = engine::to_string(*precision);
  section.facts["dry_run"] = true;
  section.facts["compared"] = false;
  section.facts["trial"] = {{"steps", result.steps},
                            {"steps_per_second", static_cast<double>(result.steps) / result.step_seconds},
                            {"reserved_bytes", result.reserved_bytes}};
  section.ok(
      fmt::format("dry run of {} steps on {} in {}: a virtual GPU computes nothing, so there are no values to compare, "
                  "and its speed has no meaning",
                  result.steps, context.device, engine::to_string(*precision)));
}

}  // namespace

Section examine_training_step(const DoctorContext& context, const std::string& device) {
  constexpr double kTimeoutSeconds = 120;  // includes loading the CUDA libraries and kernels; not tuned
  return examine_in_subprocess(
      {.name = "step",
       .activity = "a training step",
       .suggestion = "check dmesg, and environment variables that select kernels and libraries",
       .timeout_seconds = kTimeoutSeconds},
      [&](Section& section) {
        section.facts = {{"device", device}, {"precision", engine::to_string(context.precision)}};
        if (context.model.empty()) {
          return section.fail("no step was tried: no writable folder for the files of a small model; set TMPDIR");
        }
        if (context.is_virtual_gpu()) return dry_run_on_virtual_gpu(context, section);
        if (device == "cpu") return test_step_on_cpu(context, section);
        test_step_on_gpu(context, device, section);
      });
}

}  // namespace vlmtrain::app
