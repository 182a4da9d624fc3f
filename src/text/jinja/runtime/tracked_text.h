#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vlmtrain::text::jinja {

/// Bytes [begin, end) of a text that come from the message text number `origin`. An empty span
/// marks the position of an empty message text.
struct OriginSpan {
  size_t begin;
  size_t end;
  int origin;
  bool empty() const { return begin == end; }
  bool operator==(const OriginSpan&) const = default;
};

/// Bytes [begin, end) of a text that a `generation` block wrote.
struct GeneratedSpan {
  size_t begin;
  size_t end;
  bool operator==(const GeneratedSpan&) const = default;
};

/// A UTF-8 text that records the origin of its characters. Origin spans are ordered, do not
/// overlap, and adjacent spans of one origin are merged. Bytes outside of all spans come from the
/// template itself.
class TrackedText {
 public:
  TrackedText() = default;
  explicit TrackedText(std::string bytes) : bytes_(std::move(bytes)) {}
  /// Creates a text that comes from `origin` as a whole, even if it is empty.
  TrackedText(std::string bytes, int origin) : bytes_(std::move(bytes)), origin_spans_{{0, bytes_.size(), origin}} {}

  const std::string& bytes() const { return bytes_; }
  std::span<const OriginSpan> origin_spans() const { return origin_spans_; }
  /// Returns the output of `generation` blocks: ordered, without overlap, none empty.
  std::span<const GeneratedSpan> generated() const { return generated_; }
  /// Marks the whole text as output of a `generation` block.
  void mark_generated();
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }

  /// Returns bytes [begin, end). An empty slice has the empty spans of the origins on both sides.
  TrackedText slice(size_t begin, size_t end) const;

  /// Appends text without origin.
  void append(std::string_view plain) { bytes_ += plain; }
  /// Appends `other`, or bytes [begin, end) of it, with their origins.
  void append(const TrackedText& other) { append(other, 0, other.size()); }
  void append(const TrackedText& other, size_t begin, size_t end);

  /// Adds an empty span for each origin of `source` if this text, made from `source`, is empty.
  /// Without it an empty answer would have no position.
  void inherit_origins(const TrackedText& source);

  /// Appends `source` as transform(begin, end, out) writes it. `transform` is called for ranges of
  /// one origin each, and its output keeps that origin.
  template <class Transform>
  void append_transformed(const TrackedText& source, Transform transform) {
    size_t pos = 0;
    for (const OriginSpan& origin_span : source.origin_spans_) {
      if (pos < origin_span.begin) transform(pos, origin_span.begin, bytes_);
      const size_t begin = bytes_.size();
      if (!origin_span.empty()) transform(origin_span.begin, origin_span.end, bytes_);
      add_span({begin, bytes_.size(), origin_span.origin});
      pos = origin_span.end;
    }
    if (pos < source.size()) transform(pos, source.size(), bytes_);
  }

 private:
  /// Adds a span at the end of the text, merged with an adjacent one of the same origin.
  void add_span(OriginSpan origin_span);

  std::string bytes_;
  std::vector<OriginSpan> origin_spans_;
  std::vector<GeneratedSpan> generated_;
};

}  // namespace vlmtrain::text::jinja
