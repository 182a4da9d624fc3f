#pragma once

#include <string>

#include "vlmtrain/engine/optimizer/adamw.h"

namespace vlmtrain::engine {

/// What AdamW holds of a parameter.
struct AdamW::Entry {
  std::string name;
  nn::Component component;
  bool has_weight_decay;
  at::Tensor parameter;       // what the model computes with
  ElementRange range;         // of it, that is this rank's
  at::Tensor weight;          // that piece; without shards the parameter itself
  at::Tensor master;          // fp32; the same storage as `weight` if that is fp32
  at::Tensor first_moment{};  // fp32; undefined where it is compressed
  at::Tensor second_moment{};
  at::Tensor steps{};  // fp32 scalar

  bool is_compressed() const { return !first_moment.defined(); }
  bool is_local() const { return range.count > 0; }
  bool has_master() const { return weight.scalar_type() != at::kFloat; }
};

}  // namespace vlmtrain::engine
