#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "vlmtrain/engine/settings/options.h"

namespace vlmtrain::app {

/// The consequence of a finding for training.
enum class Severity {
  kOk,
  kWarn,  ///< training would start, but slowly or with less memory or safety
  kFail,  ///< training would not start
};

/// Returns "ok", "warn" or "fail".
const char* to_string(Severity severity);

/// One result of an examination.
struct Finding {
  Severity severity = Severity::kOk;
  std::string text;  ///< one line
};

/// The results of one examination: findings, which are printed as text, and facts, which are
/// printed with --json (docs/how-to/check-a-machine.md).
struct Section {
  std::string name{};               ///< such as "driver"; the key of the facts in the JSON output
  std::vector<Finding> findings{};  ///< in the order of printing
  nlohmann::ordered_json facts = nlohmann::ordered_json::object();

  /// Adds a finding. Each line break of `text` and the spaces after it become one space.
  void add(Severity severity, const std::string& text);
  void ok(const std::string& text) { add(Severity::kOk, text); }
  void warn(const std::string& text) { add(Severity::kWarn, text); }
  void fail(const std::string& text) { add(Severity::kFail, text); }
  bool has_failure() const;
};

/// The settings of one examination.
struct ExaminationSettings {
  std::string name;  ///< name of its section
  /// Completes "… was ended by signal 11", for example "querying the driver".
  std::string activity;
  std::string suggestion{};                     ///< advice that is printed after a crash or a timeout; may be empty
  double timeout_seconds = 30;                  ///< not tuned
  Severity failure_severity = Severity::kFail;  ///< severity of an exception, a crash or a timeout
};

/// Calls `examine` with an empty section in a child process (base/process.h) and returns the
/// section. If `examine` throws, crashes or hangs, as it may on a broken machine, that is a
/// finding. Does not throw.
Section examine_in_subprocess(const ExaminationSettings& examination, const std::function<void(Section&)>& examine);

/// The input of the examinations: arguments of `vlmtrain doctor`, and results of earlier
/// examinations.
struct DoctorContext {
  std::string device = "auto";                             ///< --device
  std::string config{};                                    ///< --config, path of a YAML file; may be empty
  std::vector<std::string> overrides{};                    ///< key=value, in addition to the file
  std::filesystem::path output_dir{};                      ///< --output-dir or output.dir; empty if neither is set
  engine::Precision precision = engine::Precision::kBf16;  ///< training.precision
  /// LibTorch settings, as NAME=VALUE, that were removed from the environment
  /// (memory/libtorch_env.h).
  std::vector<std::string> ignored_env_settings{};
  std::filesystem::path model{};  ///< folder with the files of a small preset; empty if none is writable

  bool is_virtual_gpu() const { return device.starts_with("virtual:"); }
};

// The functions below run in a child process, by examine_in_subprocess(), and do not throw.

/// Examines the processor: model, cores, limits on threads, and LibTorch's instruction set.
Section examine_cpu();

/// Examines the host's memory and its limits.
Section examine_host_memory();

/// Examines the version and location of LibTorch's libraries. Without the CUDA library, fails if
/// `context.device` is a GPU.
Section examine_libraries(const DoctorContext& context);

/// Examines the NVIDIA driver and the visible GPUs. Its fact "device" is the device that a run
/// would use: cpu, cuda:N or virtual:NAME.
Section examine_driver(const DoctorContext& context);

/// Examines the output folder (the current folder if none is set) and the folder of temporary
/// files.
Section examine_disk(const DoctorContext& context);

/// Examines the configuration and the files that it names, with the checks of `train`. Its facts
/// "precision" and "output_dir" are those of the configuration. REQUIRES: `context.config` is not
/// empty.
Section examine_config(const DoctorContext& context);

/// Examines whether planning works, with a dry run of a small model.
Section examine_planning(const DoctorContext& context);

/// Trains a small model on `device` for one second and on the CPU in fp32 for another, and compares
/// the results. `device` is the fact of examine_driver(). On a virtual GPU there is only a dry run.
Section examine_training_step(const DoctorContext& context, const std::string& device);

}  // namespace vlmtrain::app
