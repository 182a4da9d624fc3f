#include "vlmtrain/nn/quantization.h"

#include "nn/int8.h"
#include "nn/nf4.h"
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
  switch (quantization_) {
    case Quantization::kNf4:
      return std::make_shared<Nf4Weight>(sizes, options_, Nf4Tables{nf4_pairs_, dynamic_map_});
    case Quantization::kInt8:
      return std::make_shared<Int8Weight>(sizes, options_);
    case Quantization::kNone:
      break;
  }
  throw InternalError("a weight that is not quantised");
}

}  // namespace vlmtrain::nn
