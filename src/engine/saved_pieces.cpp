#include "vlmtrain/engine/saved_pieces.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "vlmtrain/base/number_behind.h"

namespace vlmtrain::engine {

std::string piece_name(std::string_view tensor, int64_t first) {
  return fmt::format("{}@{}", tensor, first);
}

std::optional<std::pair<std::string, int64_t>> parse_piece_name(std::string_view name) {
  const size_t at = name.rfind('@');
  if (at == std::string_view::npos) return std::nullopt;
  const auto first = number_behind("@", name.substr(at));
  if (!first || *first < 0) return std::nullopt;
  return std::pair{std::string(name.substr(0, at)), *first};
}

SavedPieces::SavedPieces(const std::map<std::string, at::Tensor>& tensors) {
  for (const auto& [name, values] : tensors) add(name, values, {});
  sort();
}

SavedPieces::SavedPieces(const std::map<std::string, UnreadTensor>& tensors) {
  for (const auto& [name, tensor] : tensors) {
    add(name, at::empty(tensor.shape, at::TensorOptions(tensor.dtype).device(at::kMeta)), tensor.read);
  }
  sort();
}

void SavedPieces::add(const std::string& name, const at::Tensor& values, std::function<at::Tensor()> read) {
  const auto piece = parse_piece_name(name);
  pieces_[piece ? piece->first : name].push_back(
      {.first = piece ? piece->second : 0, .values = values, .is_whole = !piece, .read = std::move(read)});
}

void SavedPieces::sort() {
  for (auto& [name, pieces] : pieces_) std::ranges::sort(pieces, {}, &Saved::first);
}

std::vector<std::string> SavedPieces::names() const {
  std::vector<std::string> names;
  for (const auto& [name, pieces] : pieces_) names.push_back(name);
  return names;
}

const at::Tensor* SavedPieces::whole(const std::string& tensor) const {
  const auto found = pieces_.find(tensor);
  return found != pieces_.end() && found->second.front().is_whole ? &found->second.front().values : nullptr;
}

std::optional<at::Tensor> SavedPieces::find(const std::string& tensor, int64_t first, int64_t count, int64_t total,
                                            at::ScalarType dtype) const {
  const auto found = pieces_.find(tensor);
  if (found == pieces_.end()) return std::nullopt;
  std::vector<at::Tensor> parts;
  int64_t end = 0;
  for (const Saved& piece : found->second) {
    if (piece.first != end || piece.values.scalar_type() != dtype) return std::nullopt;
    const int64_t piece_end = piece.first + piece.values.numel();
    const int64_t from = std::max(first, piece.first), to = std::min(first + count, piece_end);
    if (to > from)
      parts.push_back(
          (piece.read ? piece.read() : piece.values).reshape({-1}).narrow(0, from - piece.first, to - from));
    end = piece_end;
  }
  if (end != total || parts.empty()) return std::nullopt;
  return parts.size() == 1 ? parts.front() : at::cat(parts);
}

}  // namespace vlmtrain::engine
