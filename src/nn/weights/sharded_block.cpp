#include "vlmtrain/nn/weights/sharded_block.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <utility>

#include "vlmtrain/base/error.h"

namespace vlmtrain::nn {

namespace {

using Kind = ShardedBlock::Kind;

/// The alignment of sections and packed tensors in bytes, equal to that of the CUDA caching
/// allocator.
constexpr int64_t kByteAlignment = 512;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Returns the alignment of tensors in a section, in elements of its dtype.
int64_t get_alignment(Kind kind) {
  return kind == Kind::kTrained ? kShardAlignment : kByteAlignment;
}

/// Returns the number of elements of the section that one element of `tensor` takes.
int64_t get_element_width(Kind kind, const at::Tensor& tensor) {
  return kind == Kind::kTrained ? 1 : static_cast<int64_t>(tensor.element_size());
}

}  // namespace

ElementRange intersect_shard(int64_t offset, int64_t elements, int64_t shard_elements, const Shard& shard) {
  const int64_t first = std::max(shard.rank * shard_elements, offset);
  const int64_t end = std::min((shard.rank + 1) * shard_elements, offset + elements);
  return end > first ? ElementRange{.first = first - offset, .count = end - first} : ElementRange{};
}

ShardedBlock::ShardedBlock(const std::vector<Weight>& weights, const at::TensorOptions& options, const Shard& shard)
    : shard_(shard), device_(options.device()) {
  const at::NoGradGuard no_gradients;
  section(Kind::kTrained).dtype = options.dtype().toScalarType();
  lay_out_sections(weights);
  rebind_tensors(options);
}

void ShardedBlock::lay_out_sections(const std::vector<Weight>& weights) {
  for (const auto& weight : weights) {
    Member member{.kind = weight.kind, .stored = {}, .quantized_weight = weight.quantized_weight};
    const auto tensors = weight.quantized_weight ? weight.quantized_weight->tensors() : std::vector{weight.tensor};
    for (const auto& tensor : tensors) {
      const int64_t elements = tensor.numel() * get_element_width(weight.kind, tensor);
      member.stored.push_back({.tensor = tensor, .first = 0, .elements = elements});
    }
    members_.push_back(std::move(member));
  }
  assign_offsets();
  int64_t bytes = 0;
  for (const Kind kind : {Kind::kTrained, Kind::kFrozen}) {
    Section& section = this->section(kind);
    section.elements = round_up(section.elements, get_alignment(kind) * shard_.count);
    section.byte_offset = bytes;
    bytes += round_up(section.elements * static_cast<int64_t>(c10::elementSize(section.dtype)), kByteAlignment);
  }
}

void ShardedBlock::assign_offsets() {
  const auto get_storage = [](const StoredTensor& stored) { return stored.tensor.storage().unsafeGetStorageImpl(); };
  const auto get_begin_byte = [](const StoredTensor& stored) {
    return stored.tensor.storage_offset() * static_cast<int64_t>(stored.tensor.element_size());
  };
  // Frozen tensors that together fill an allocation belong to a group and remain adjacent.
  struct Range {
    int64_t begin, end;   // bytes of the allocation that the tensors span
    int64_t stored = 0;   // sum of the tensors' bytes; equal to end − begin if there are no gaps
    int64_t offset = -1;  // in the section; −1 until assigned
  };
  std::map<const c10::StorageImpl*, Range> ranges;
  for (const Member& member : members_) {
    if (member.kind != Kind::kFrozen) continue;
    for (const StoredTensor& stored : member.stored) {
      const int64_t begin = get_begin_byte(stored), end = begin + stored.elements;
      Range& range = ranges.try_emplace(get_storage(stored), Range{begin, end}).first->second;
      range = {.begin = std::min(range.begin, begin),
               .end = std::max(range.end, end),
               .stored = range.stored + stored.elements};
    }
  }
  for (Member& member : members_) {
    Section& section = this->section(member.kind);
    const auto allocate = [&](int64_t elements) {
      return std::exchange(section.elements, section.elements + round_up(elements, get_alignment(member.kind)));
    };
    for (StoredTensor& stored : member.stored) {
      const auto it = member.kind == Kind::kFrozen ? ranges.find(get_storage(stored)) : ranges.end();
      if (it == ranges.end() || it->second.stored != it->second.end - it->second.begin) {
        stored.first = allocate(stored.elements);
        continue;
      }
      Range& range = it->second;
      if (range.offset < 0) range.offset = allocate(range.stored);
      stored.first = range.offset + get_begin_byte(stored) - range.begin;
    }
  }
}

void ShardedBlock::rebind_tensors(const at::TensorOptions& options) {
  for (Section& section : sections_) {
    section.local_shard = at::empty({section.elements / shard_.count}, options.dtype(section.dtype));
    const auto bytes = static_cast<size_t>(section.elements) * c10::elementSize(section.dtype);
    section.storage = c10::Storage(c10::Storage::use_byte_size_t(), bytes, at::DataPtr(nullptr, device_),
                                   /*allocator=*/nullptr, /*resizable=*/false);
  }
  for (const Member& member : members_) {
    const Section& section = this->section(member.kind);
    for (const StoredTensor& stored : member.stored) {
      at::Tensor tensor = stored.tensor;
      // set_() would resize the storage on the meta device, which dry runs on the host use.
      const auto replacement =
          at::detail::make_tensor<c10::TensorImpl>(c10::Storage(section.storage), tensor.key_set(), tensor.dtype());
      replacement.unsafeGetTensorImpl()->set_storage_offset(stored.first / get_element_width(member.kind, tensor));
      replacement.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides());
      tensor.set_data(replacement);
    }
  }
}

int64_t ShardedBlock::bytes() const {
  const Section& last = sections_.back();
  return last.byte_offset + last.elements * static_cast<int64_t>(c10::elementSize(last.dtype));
}

at::Tensor ShardedBlock::view_section(Kind kind, const at::Tensor& buffer) const {
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

at::Tensor ShardedBlock::slice_local(const Section& section, const StoredTensor& stored) const {
  const ElementRange local_range = find_local_range(section, stored);
  const int64_t begin = stored.first + local_range.first - shard_.rank * (section.elements / shard_.count);
  return section.local_shard.narrow(0, local_range.count == 0 ? 0 : begin, local_range.count)
      .view(stored.tensor.scalar_type());
}

ElementRange ShardedBlock::local_range(size_t i) const {
  const Member& member = members_[i];
  VLMTRAIN_CHECK(!member.quantized_weight, "a quantized weight has no local range of values");
  const StoredTensor& stored = member.stored.front();
  const ElementRange local_range = find_local_range(section(member.kind), stored);
  const int64_t width = get_element_width(member.kind, stored.tensor);
  return {.first = local_range.first / width, .count = local_range.count / width};
}

at::Tensor ShardedBlock::local_slice(size_t i) const {
  const Member& member = members_[i];
  VLMTRAIN_CHECK(!member.quantized_weight, "a quantized weight has no local range of values");
  return slice_local(section(member.kind), member.stored.front());
}

void ShardedBlock::set_values(size_t i, const at::Tensor& values) {
  const at::NoGradGuard no_gradients;
  const Member& member = members_[i];
  const Section& section = this->section(member.kind);
  if (!member.quantized_weight) {
    const ElementRange range = local_range(i);
    if (range.count > 0) local_slice(i).copy_(values.reshape(-1).narrow(0, range.first, range.count));
    return;
  }
  VLMTRAIN_CHECK(!is_unsharded_, "cannot set values while the block is unsharded");
  const at::Tensor buffer = at::empty({bytes()}, at::TensorOptions(at::kByte).device(device_));
  unshard(buffer);
  member.quantized_weight->quantize(values);
  const at::Tensor packed = view_section(member.kind, buffer);
  for (const StoredTensor& stored : member.stored) {
    const ElementRange range = find_local_range(section, stored);
    if (range.count == 0) continue;
    const at::Tensor local_bytes = packed.narrow(0, stored.first + range.first, range.count);
    slice_local(section, stored).copy_(local_bytes.view(stored.tensor.scalar_type()));
  }
  reshard();
}

}  // namespace vlmtrain::nn
