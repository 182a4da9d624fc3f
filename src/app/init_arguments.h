#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace vlmtrain::app {

/// What `vlmtrain init` is asked.
struct InitArguments {
  std::string preset;
  std::string out;
  std::string tokenizer;
  std::string text_model;
  std::string mask_model;
  std::string volume_tower;
  std::optional<int64_t> tower_heads;
  std::string volume_size;
  uint64_t seed = 0;
  std::string dtype;  ///< empty: float32, or the types of the weights that are taken over
  bool json = false;
};

/// Binds the command's options to `arguments`, which must outlive it.
void declare(CLI::App& command, InitArguments& arguments);

}  // namespace vlmtrain::app
