#pragma once

#include <cstdint>

#include "vlmtrain/engine/gradients/gradient_buckets.h"
#include "vlmtrain/engine/optimizer/adamw.h"

namespace vlmtrain::engine {

/// A base class, so that the buckets are constructed before the optimizer.
struct OwnedBuckets {
  GradientBuckets gradient_buckets;
};

/// An optimizer that owns its gradient buckets.
class BucketedAdamW : public OwnedBuckets, public AdamW {
 public:
  BucketedAdamW(const nn::ParameterStore& store, const AdamWSettings& settings, int64_t groups = 1)
      : OwnedBuckets{GradientBuckets(store, groups)}, AdamW(store, OwnedBuckets::gradient_buckets, settings) {}
};

}  // namespace vlmtrain::engine
