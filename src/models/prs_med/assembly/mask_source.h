#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "models/checkpoints/tensor_source.h"
#include "models/prs_med/assembly/mask_layout.h"
#include "vlmtrain/io/lazy_tensors.h"
#include "vlmtrain/nn/parameters.h"

namespace vlmtrain::models::prs_med {

/// A mask model that others have trained, whose encoder and decoder are taken over.
class MaskSource {
 public:
  /// Throws UserError (kBadData) where it is damaged, or in an unknown layout.
  explicit MaskSource(const std::filesystem::path& path);

  /// `preset`, a mask_config, with the sizes that this one has.
  nlohmann::ordered_json config(nlohmann::ordered_json preset) const;
  /// Throws UserError (kBadData) that lists what of `parameters` it has not, or of other shapes; logs what it has
  /// beside them and what does not run.
  void check(const std::vector<nn::Parameter>& parameters) const;
  /// A parameter's weight as it is stored, under the parameter's name; nothing for one that no mask model has.
  /// REQUIRES: check() has passed it.
  std::optional<io::LazyTensor> weight(const nn::Parameter& parameter) const;
  const std::filesystem::path& path() const { return tensors_.path(); }
  std::string_view layout() const { return get_layout_name(layout_); }

 private:
  /// What it calls a parameter; nothing for one that no mask model has.
  std::optional<std::string> find_stored_name(const nn::Parameter& parameter) const;

  TensorSource tensors_;
  MaskLayout layout_;
};

}  // namespace vlmtrain::models::prs_med
