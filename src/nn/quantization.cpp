#include "vlmtrain/nn/quantization.h"

#include <utility>

#include "nn/int8.h"
#include "nn/weights/nf4.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::nn {

Quantizer::Quantizer(Quantization quantization, const at::TensorOptions& options)
    : quantization_(quantization), options_(options) {
  if (quantization_ != Quantization::kNf4) return;
  const Nf4Tables tables = make_nf4_tables(options.device());
  nf4_pairs_ = tables.values;
  dynamic_map_ = tables.absmax;
}

std::shared_ptr<QuantizedWeight> Quantizer::make(at::IntArrayRef sizes) const {
  return make_group({sizes[0]}, sizes[1]).front();
}

std::vector<std::shared_ptr<QuantizedWeight>> Quantizer::make_group(const std::vector<int64_t>& out_features,
                                                                    int64_t in_features) const {
  std::vector<std::shared_ptr<QuantizedWeight>> weights;
  switch (quantization_) {
    case Quantization::kNf4:
      for (auto& weight : make_nf4_weights(out_features, in_features, options_, {nf4_pairs_, dynamic_map_})) {
        weights.push_back(std::move(weight));
      }
      return weights;
    case Quantization::kInt8:
      for (const int64_t out : out_features) {
        weights.push_back(std::make_shared<Int8Weight>(at::IntArrayRef{out, in_features}, options_));
      }
      return weights;
    case Quantization::kNone:
      break;
  }
  throw InternalError("a weight that is not quantised");
}

std::vector<at::Tensor> dequantize_group(const std::vector<std::shared_ptr<const QuantizedWeight>>& weights) {
  std::vector<const Nf4Weight*> all;
  for (const auto& weight : weights) {
    const auto* const nf4 = dynamic_cast<const Nf4Weight*>(weight.get());
    if (nf4 == nullptr) return {};
    all.push_back(nf4);
  }
  return Nf4Weight::dequantize_group(all);
}

}  // namespace vlmtrain::nn
