#include "vlmtrain/nn/sharded_block.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <utility>

#include "vlmtrain/base/error.h"

namespace vlmtrain::nn {

namespace {

using Kind = ShardedBlock::Kind;

/// Bytes: sections and what is packed begin where the allocator would let them begin.
constexpr int64_t kByteAlignment = 512;

int64_t rounded_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// In elements of a section.
int64_t alignment_of(Kind kind) {
  return kind == Kind::kTrained ? kShardAlignment : kByteAlignment;
}

/// An element of a tensor in elements of the section.
int64_t width_of(Kind kind, const at::Tensor& tensor) {
  return kind == Kind::kTrained ? 1 : static_cast<int64_t>(tensor.element_size());
}

}  // namespace

ShardedBlock::ShardedBlock(const std::vector<Weight>& weights, const at::TensorOptions& options, const Shard& shard)
    : shard_(shard), device_(options.device()) {
  const at::NoGradGuard no_gradients;
  section(Kind::kTrained).dtype = options.dtype().toScalarType();
  lay_out(weights);
  move_tensors(options);
}

void ShardedBlock::lay_out(const std::vector<Weight>& weights) {
  for (const auto& weight : weights) {
    Member member{.kind = weight.kind, .held = {}, .quantized = weight.quantized};
    const auto tensors = weight.quantized ? weight.quantized->tensors() : std::vector{weight.tensor};
    for (const auto& tensor : tensors) {
      const int64_t elements = tensor.numel() * width_of(weight.kind, tensor);
      member.held.push_back({.tensor = tensor, .first = 0, .elements = elements});
    }
    members_.push_back(std::move(member));
  }
  place_tensors();
  int64_t bytes = 0;
  for (const Kind kind : {Kind::kTrained, Kind::kFrozen}) {
    Section& section = this->section(kind);
    section.elements = rounded_up(section.elements, alignment_of(kind) * shard_.count);
    section.first_byte = bytes;
    bytes += rounded_up(section.elements * static_cast<int64_t>(c10::elementSize(section.dtype)), kByteAlignment);
  }
}

void ShardedBlock::place_tensors() {
  const auto storage_of = [](const Held& held) { return held.tensor.storage().unsafeGetStorageImpl(); };
  const auto begin_of = [](const Held& held) {
    return held.tensor.storage_offset() * static_cast<int64_t>(held.tensor.element_size());
  };
  // What is frozen and fills an allocation together is a group's: it goes on lying end to end.
  struct Range {
    int64_t begin, end;
    int64_t held = 0;
    int64_t place = -1;
  };
  std::map<const c10::StorageImpl*, Range> ranges;
  for (const Member& member : members_) {
    if (member.kind != Kind::kFrozen) continue;
    for (const Held& held : member.held) {
      const int64_t begin = begin_of(held), end = begin + held.elements;
      Range& range = ranges.try_emplace(storage_of(held), Range{begin, end}).first->second;
      range = {
          .begin = std::min(range.begin, begin), .end = std::max(range.end, end), .held = range.held + held.elements};
    }
  }
  for (Member& member : members_) {
    Section& section = this->section(member.kind);
    const auto take = [&](int64_t elements) {
      return std::exchange(section.elements, section.elements + rounded_up(elements, alignment_of(member.kind)));
    };
    for (Held& held : member.held) {
      const auto found = member.kind == Kind::kFrozen ? ranges.find(storage_of(held)) : ranges.end();
      if (found == ranges.end() || found->second.held != found->second.end - found->second.begin) {
        held.first = take(held.elements);
        continue;
      }
      Range& range = found->second;
      if (range.place < 0) range.place = take(range.held);
      held.first = range.place + begin_of(held) - range.begin;
    }
  }
}

void ShardedBlock::move_tensors(const at::TensorOptions& options) {
  for (Section& section : sections_) {
    section.part = at::empty({section.elements / shard_.count}, options.dtype(section.dtype));
    const auto bytes = static_cast<size_t>(section.elements) * c10::elementSize(section.dtype);
    section.storage = c10::Storage(c10::Storage::use_byte_size_t(), bytes, at::DataPtr(nullptr, device_),
                                   /*allocator=*/nullptr, /*resizable=*/false);
  }
  for (const Member& member : members_) {
    const Section& section = this->section(member.kind);
    for (const Held& held : member.held) {
      at::Tensor tensor = held.tensor;
      // Not set_(): on the meta device, where rehearsals of the host run, that resizes the storage.
      const auto there =
          at::detail::make_tensor<c10::TensorImpl>(c10::Storage(section.storage), tensor.key_set(), tensor.dtype());
      there.unsafeGetTensorImpl()->set_storage_offset(held.first / width_of(member.kind, tensor));
      there.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides());
      tensor.set_data(there);
    }
  }
}

int64_t ShardedBlock::bytes() const {
  const Section& last = sections_.back();
  return last.first_byte + last.elements * static_cast<int64_t>(c10::elementSize(last.dtype));
}

at::Tensor ShardedBlock::whole(Kind kind, const at::Tensor& place) const {
  const Section& section = this->section(kind);
  const auto bytes = section.elements * static_cast<int64_t>(c10::elementSize(section.dtype));
  return place.narrow(0, section.first_byte, bytes).view(section.dtype);
}

void ShardedBlock::set_storage(void* place) {
  for (const Section& section : sections_) {
    void* const begin = place == nullptr ? nullptr : static_cast<char*>(place) + section.first_byte;
    section.storage.unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(begin, device_));
  }
}

void ShardedBlock::lend(const at::Tensor& place) {
  VLMTRAIN_CHECK(!is_lent_ && place.numel() >= bytes(), "a place of {} bytes for a block of {}", place.numel(),
                 bytes());
  set_storage(place.is_meta() ? nullptr : place.mutable_data_ptr());
  is_lent_ = true;
}

void ShardedBlock::release() {
  set_storage(nullptr);
  is_lent_ = false;
}

Piece ShardedBlock::piece_of(const Section& section, const Held& held) const {
  return piece_in_shard(held.first, held.elements, section.elements / shard_.count, shard_);
}

at::Tensor ShardedBlock::own_piece_of(const Section& section, const Held& held) const {
  const Piece piece = piece_of(section, held);
  const int64_t begin = held.first + piece.first - shard_.rank * (section.elements / shard_.count);
  return section.part.narrow(0, piece.count == 0 ? 0 : begin, piece.count).view(held.tensor.scalar_type());
}

Piece ShardedBlock::piece(size_t i) const {
  const Member& member = members_[i];
  VLMTRAIN_CHECK(!member.quantized, "a piece of a quantised weight");
  const Held& held = member.held.front();
  const Piece piece = piece_of(section(member.kind), held);
  const int64_t width = width_of(member.kind, held.tensor);
  return {.first = piece.first / width, .count = piece.count / width};
}

at::Tensor ShardedBlock::own_piece(size_t i) const {
  const Member& member = members_[i];
  VLMTRAIN_CHECK(!member.quantized, "a piece of a quantised weight");
  return own_piece_of(section(member.kind), member.held.front());
}

void ShardedBlock::set_values(size_t i, const at::Tensor& values) {
  const at::NoGradGuard no_gradients;
  const Member& member = members_[i];
  const Section& section = this->section(member.kind);
  if (!member.quantized) {
    const Piece own = piece(i);
    if (own.count > 0) own_piece(i).copy_(values.reshape(-1).narrow(0, own.first, own.count));
    return;
  }
  VLMTRAIN_CHECK(!is_lent_, "values for a block that is being used");
  const at::Tensor place = at::empty({bytes()}, at::TensorOptions(at::kByte).device(device_));
  lend(place);
  member.quantized->quantize(values);
  const at::Tensor packed = whole(member.kind, place);
  for (const Held& held : member.held) {
    const Piece own = piece_of(section, held);
    if (own.count == 0) continue;
    const at::Tensor mine = packed.narrow(0, held.first + own.first, own.count);
    own_piece_of(section, held).copy_(mine.view(held.tensor.scalar_type()));
  }
  release();
}

}  // namespace vlmtrain::nn
