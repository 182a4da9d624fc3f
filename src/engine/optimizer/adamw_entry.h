#pragma once

#include <string>

#include "vlmtrain/engine/optimizer/adamw.h"

namespace vlmtrain::engine {

/// The state of one parameter.
struct AdamW::Entry {
  std::string name;
  nn::Component component;
  bool has_weight_decay;
  at::Tensor parameter;       // the parameter of the model
  ElementRange range;         // local range of the parameter
  at::Tensor weight;          // that range; the parameter itself if not sharded
  at::Tensor master;          // fp32; shares storage with `weight` if that is fp32
  at::Tensor first_moment{};  // fp32; undefined if compressed
  at::Tensor second_moment{};
  at::Tensor steps{};  // fp32 scalar

  bool is_compressed() const { return !first_moment.defined(); }
  bool is_local() const { return range.count > 0; }
  bool has_master() const { return weight.scalar_type() != at::kFloat; }
};

}  // namespace vlmtrain::engine
