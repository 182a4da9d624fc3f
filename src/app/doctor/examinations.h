#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "app/doctor/section.h"
#include "vlmtrain/engine/options.h"

namespace vlmtrain::app {

/// What the doctor is asked, and what has been found out by the time an examination begins.
struct DoctorContext {
  std::string device = "auto";
  std::string config{};
  std::vector<std::string> overrides{};
  std::filesystem::path output_dir{};  ///< of the flag or the configuration; empty: none is given
  engine::Precision precision = engine::Precision::kBf16;
  std::vector<std::string> foreign_settings{};  ///< that the environment held (memory/foreign_settings.h)
  std::filesystem::path model{};                ///< folder with the files of a small preset; empty: there is none

  bool is_virtual() const { return device.starts_with("virtual:"); }
};

// Each examines one thing, in a process of its own, and never throws.

/// Model, cores, and which kernels LibTorch takes.
Section examine_processor();
/// What there is of the host's memory, and what bounds it.
Section examine_host_memory();
/// LibTorch's libraries.
Section examine_libraries(const DoctorContext& context);
/// Driver and cards. facts: "device", what training would be on: cpu, cuda:N or virtual:CARD.
Section examine_driver(const DoctorContext& context);
/// The folder of results and the one of temporary files.
Section examine_disk(const DoctorContext& context);
/// What train would refuse of a configuration and of the files that it names. facts: "precision", "output_dir".
Section examine_config(const DoctorContext& context);
/// Whether planning works: a small rehearsal in its child process.
Section examine_planning(const DoctorContext& context);
/// Two seconds of training on `device`, compared with the CPU.
Section examine_step(const DoctorContext& context, const std::string& device);

}  // namespace vlmtrain::app
