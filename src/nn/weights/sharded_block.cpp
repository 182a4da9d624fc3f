#include "vlmtrain/nn/weights/sharded_block.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <utility>

#include "nn/round_up.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"

namespace vlmtrain::nn {

namespace {

using SectionKind = ShardedBlock::SectionKind;

/// The alignment of sections and packed tensors in bytes, equal to that of the CUDA caching
/// allocator.
constexpr int64_t kByteAlignment = 512;

/// Returns the alignment of tensors in a section, in elements of its dtype.
int64_t get_section_alignment(SectionKind kind) {
  return kind == SectionKind::kTrained ? kShardAlignment : kByteAlignment;
}

/// Returns the number of elements of the section that one element of `tensor` takes.
int64_t get_elements_per_value(SectionKind kind, const at::Tensor& tensor) {
  return kind == SectionKind::kTrained ? 1 : static_cast<int64_t>(tensor.element_size());
}

}  // namespace

ElementRange intersect_shard(int64_t offset, int64_t elements, int64_t shard_elements, const Shard& shard) {
  const int64_t first = std::max(shard.rank * shard_elements, offset);
  const int64_t end = std::min((shard.rank + 1) * shard_elements, offset + elements);
  return end > first ? ElementRange{.first = first - offset, .count = end - first} : ElementRange{};
}

ShardedBlock::ShardedBlock(const std::vector<Weight>& weights, const at::TensorOptions& options, const Shard& shard,
                           memory::HostArena* arena)
    : shard_(shard), device_(options.device()), is_on_host_(arena != nullptr) {
  const at::NoGradGuard no_gradients;
  section(SectionKind::kTrained).dtype = options.dtype().toScalarType();
  lay_out_sections(weights);
  allocate_shards(options, arena);
  rebind_tensors();
}

void ShardedBlock::lay_out_sections(const std::vector<Weight>& weights) {
  for (const auto& weight : weights) {
    ShardedWeight sharded_weight{
        .kind = weight.kind, .stored_tensors = {}, .quantized_weight = weight.quantized_weight};
    const auto tensors = weight.quantized_weight ? weight.quantized_weight->tensors() : std::vector{weight.tensor};
    for (const auto& tensor : tensors) {
      const int64_t elements = tensor.numel() * get_elements_per_value(weight.kind, tensor);
      sharded_weight.stored_tensors.push_back({.tensor = tensor, .first = 0, .elements = elements});
    }
    sharded_weights_.push_back(std::move(sharded_weight));
  }
  assign_offsets();
  int64_t bytes = 0;
  for (const SectionKind kind : {SectionKind::kTrained, SectionKind::kFrozen}) {
    Section& section = this->section(kind);
    section.elements = round_up(section.elements, get_section_alignment(kind) * shard_.count);
    section.byte_offset = bytes;
    bytes += round_up(section.elements * static_cast<int64_t>(c10::elementSize(section.dtype)), kByteAlignment);
  }
}

void ShardedBlock::assign_offsets() {
  // Tensors that together fill an allocation belong to a group and remain adjacent.
  struct AllocationRange {
    int64_t begin, end;    // elements of the section's dtype that the tensors span in the allocation
    int64_t elements = 0;  // sum of the tensors' elements; equal to end − begin if there are no gaps
    int64_t offset = -1;   // in the section; −1 until assigned
  };
  const auto may_group = [this](SectionKind kind) { return kind == SectionKind::kFrozen || is_whole(); };
  const auto get_first_element = [](SectionKind kind, const StoredTensor& stored) {
    return stored.tensor.storage_offset() * get_elements_per_value(kind, stored.tensor);
  };
  std::map<std::pair<SectionKind, const void*>, AllocationRange> allocation_ranges;
  for (ShardedWeight& sharded_weight : sharded_weights_) {
    for (StoredTensor& stored : sharded_weight.stored_tensors) {
      stored.allocation = stored.tensor.storage().unsafeGetStorageImpl();
      const int64_t begin = get_first_element(sharded_weight.kind, stored), end = begin + stored.elements;
      AllocationRange& range =
          allocation_ranges.try_emplace({sharded_weight.kind, stored.allocation}, AllocationRange{begin, end})
              .first->second;
      range = {.begin = std::min(range.begin, begin),
               .end = std::max(range.end, end),
               .elements = range.elements + stored.elements};
    }
  }
  for (ShardedWeight& sharded_weight : sharded_weights_) {
    Section& section = this->section(sharded_weight.kind);
    const auto allocate = [&](int64_t elements) {
      return std::exchange(section.elements,
                           section.elements + round_up(elements, get_section_alignment(sharded_weight.kind)));
    };
    for (StoredTensor& stored : sharded_weight.stored_tensors) {
      AllocationRange& range = allocation_ranges.at({sharded_weight.kind, stored.allocation});
      if (!may_group(sharded_weight.kind) || range.elements != range.end - range.begin) {
        stored.first = allocate(stored.elements);
        continue;
      }
      if (range.offset < 0) range.offset = allocate(range.elements);
      stored.first = range.offset + get_first_element(sharded_weight.kind, stored) - range.begin;
    }
  }
}

void ShardedBlock::allocate_shards(const at::TensorOptions& options, memory::HostArena* arena) {
  for (Section& section : sections_) {
    const std::array sizes{section.elements / shard_.count};
    if (arena == nullptr) {
      section.local_shard = at::empty(sizes, options.dtype(section.dtype));
    } else {
      section.host_shard = arena->allocate(sizes, section.dtype, keys::memory::kOffload.data());
      section.local_shard = arena->view_on_device(section.host_shard);
    }
  }
}

void ShardedBlock::rebind_tensors() {
  for (Section& section : sections_) {
    const auto bytes = static_cast<size_t>(section.elements) * c10::elementSize(section.dtype);
    section.storage = c10::Storage(c10::Storage::use_byte_size_t(), bytes, at::DataPtr(nullptr, device_),
                                   /*allocator=*/nullptr, /*resizable=*/false);
  }
  for (const ShardedWeight& sharded_weight : sharded_weights_) {
    const Section& section = this->section(sharded_weight.kind);
    for (const StoredTensor& stored : sharded_weight.stored_tensors) {
      at::Tensor tensor = stored.tensor;
      // set_() would resize the storage on the meta device, which dry runs on the host use.
      const auto replacement_tensor =
          at::detail::make_tensor<c10::TensorImpl>(c10::Storage(section.storage), tensor.key_set(), tensor.dtype());
      replacement_tensor.unsafeGetTensorImpl()->set_storage_offset(stored.first /
                                                                   get_elements_per_value(sharded_weight.kind, tensor));
      replacement_tensor.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides());
      tensor.set_data(replacement_tensor);
    }
  }
}

int64_t ShardedBlock::bytes() const {
  const Section& last = sections_.back();
  return last.byte_offset + last.elements * static_cast<int64_t>(c10::elementSize(last.dtype));
}

at::Tensor ShardedBlock::view_section(SectionKind kind, const at::Tensor& buffer) const {
  const Section& section = this->section(kind);
  const auto bytes = section.elements * static_cast<int64_t>(c10::elementSize(section.dtype));
  return buffer.narrow(0, section.byte_offset, bytes).view(section.dtype);
}

void ShardedBlock::set_storage(void* buffer) {
  for (const Section& section : sections_) {
    void* const begin = buffer == nullptr ? nullptr : static_cast<char*>(buffer) + section.byte_offset;
    section.storage.unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(begin, device_));
  }
}

void ShardedBlock::unshard(const at::Tensor& buffer) {
  VLMTRAIN_CHECK(!is_unsharded_ && buffer.numel() >= bytes(),
                 "unshard() requires a resharded block and a buffer of at least {1} bytes, got {0} bytes",
                 buffer.numel(), bytes());
  // Tensors on the meta device have no data.
  set_storage(buffer.is_meta() ? nullptr : buffer.mutable_data_ptr());
  is_unsharded_ = true;
}

void ShardedBlock::reshard() {
  set_storage(nullptr);
  is_unsharded_ = false;
}

ElementRange ShardedBlock::find_local_range(const Section& section, const StoredTensor& stored) const {
  return intersect_shard(stored.first, stored.elements, section.elements / shard_.count, shard_);
}

at::Tensor ShardedBlock::slice_shard(const Section& section, const at::Tensor& shard,
                                     const StoredTensor& stored) const {
  const ElementRange local_range = find_local_range(section, stored);
  const int64_t begin = stored.first + local_range.first - shard_.rank * (section.elements / shard_.count);
  return shard.narrow(0, local_range.count == 0 ? 0 : begin, local_range.count).view(stored.tensor.scalar_type());
}

ElementRange ShardedBlock::local_range(size_t i) const {
  const ShardedWeight& sharded_weight = sharded_weights_[i];
  VLMTRAIN_CHECK(!sharded_weight.quantized_weight, "a quantized weight has no local range of values");
  const StoredTensor& stored = sharded_weight.stored_tensors.front();
  const ElementRange local_range = find_local_range(section(sharded_weight.kind), stored);
  const int64_t width = get_elements_per_value(sharded_weight.kind, stored.tensor);
  return {.first = local_range.first / width, .count = local_range.count / width};
}

at::Tensor ShardedBlock::view_local_values(size_t i) const {
  const ShardedWeight& sharded_weight = sharded_weights_[i];
  VLMTRAIN_CHECK(!sharded_weight.quantized_weight, "a quantized weight has no local range of values");
  const Section& section = this->section(sharded_weight.kind);
  return slice_shard(section, section.local_shard, sharded_weight.stored_tensors.front());
}

void ShardedBlock::set_values(size_t i, const at::Tensor& values) {
  const at::NoGradGuard no_gradients;
  const ShardedWeight& sharded_weight = sharded_weights_[i];
  const Section& section = this->section(sharded_weight.kind);
  // Copies between the device and host memory must name the host's side.
  const at::Tensor& shard = is_on_host_ ? section.host_shard : section.local_shard;
  if (!sharded_weight.quantized_weight) {
    const ElementRange range = local_range(i);
    if (range.count == 0) return;
    slice_shard(section, shard, sharded_weight.stored_tensors.front())
        .copy_(values.reshape(-1).narrow(0, range.first, range.count));
    return;
  }
  VLMTRAIN_CHECK(!is_unsharded_, "cannot set values while the block is unsharded");
  const at::Tensor buffer = at::empty({bytes()}, at::TensorOptions(at::kByte).device(device_));
  unshard(buffer);
  sharded_weight.quantized_weight->quantize(values);
  const at::Tensor packed = view_section(sharded_weight.kind, buffer);
  for (const StoredTensor& stored : sharded_weight.stored_tensors) {
    const ElementRange range = find_local_range(section, stored);
    if (range.count == 0) continue;
    const at::Tensor local_bytes = packed.narrow(0, stored.first + range.first, range.count);
    slice_shard(section, shard, stored).copy_(local_bytes.view(stored.tensor.scalar_type()));
  }
  reshard();
}

}  // namespace vlmtrain::nn
