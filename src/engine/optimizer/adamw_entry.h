#pragma once

#include <string>

#include "vlmtrain/engine/optimizer/adamw.h"

namespace vlmtrain::engine {

/// A trained parameter and its state.
struct AdamW::Entry {
  std::string name;
  nn::Component component;
  bool has_weight_decay;
  at::Tensor parameter;        // the parameter of the model
  ElementRange range;          // local range of the flattened parameter
  at::Tensor weight;           // view of that range; has the parameter's shape if not sharded
  at::Tensor master;           // fp32, same shape as `weight`; shares its storage if `weight` is fp32
  at::Tensor first_moment{};   // fp32, same shape as `weight`; undefined if compressed
  at::Tensor second_moment{};  // as first_moment
  at::Tensor steps{};          // step counter, fp32 scalar, a view of AdamW::step_counters_

  bool is_compressed() const { return !first_moment.defined(); }
  bool has_local_elements() const { return range.count > 0; }
  bool has_master() const { return weight.scalar_type() != at::kFloat; }
};

}  // namespace vlmtrain::engine
