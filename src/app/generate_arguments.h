#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "vlmtrain/engine/sampling.h"

namespace vlmtrain::app {

/// What `vlmtrain generate` is asked.
struct GenerateArguments {
  std::string checkpoint;
  std::string base;
  std::vector<std::string> images;
  std::vector<std::string> videos;
  std::vector<std::string> volumes;
  std::vector<std::string> modalities;
  std::string prompt;
  std::string system;
  std::string data;
  std::string record;
  std::string chat_template = "auto";
  bool show_prompt = false;
  std::string device = "auto";
  std::string precision = "fp32";
  int64_t max_new_tokens = 64;
  engine::SamplingSettings sampling;
  bool use_cache = true;
  std::string mask_out;
  bool json = false;
  std::vector<std::string> volume_settings;
};

/// Binds the command's options to `arguments`, which must outlive it.
void declare(CLI::App& command, GenerateArguments& arguments);

}  // namespace vlmtrain::app
