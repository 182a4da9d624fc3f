#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vlmtrain::text::jinja {

/// Bytes [begin, end) of a text that come from one input text. `origin` is the number that the
/// caller gave this input in Value::text(): the index of a turn, or kBlockTypeOrigin. An empty span
/// marks the position of an empty input text.
struct OriginSpan {
  size_t begin;
  size_t end;
  int origin;
  bool empty() const { return begin == end; }
  bool operator==(const OriginSpan&) const = default;
};

/// Bytes [begin, end) of a text that are the output of a `generation` block.
struct GeneratedSpan {
  size_t begin;
  size_t end;
  bool operator==(const GeneratedSpan&) const = default;
};

/// A UTF-8 text that records the origin of its characters. Origin spans are in order and do not
/// overlap; adjacent spans with the same origin are merged. Bytes outside of all spans come from
/// the template itself.
class TextWithOrigins {
 public:
  TextWithOrigins() = default;
  explicit TextWithOrigins(std::string bytes) : bytes_(std::move(bytes)) {}
  /// Creates a text whose characters all have the origin `origin`. An empty text gets an empty
  /// span.
  TextWithOrigins(std::string bytes, int origin)
      : bytes_(std::move(bytes)), origin_spans_{{0, bytes_.size(), origin}} {}

  const std::string& bytes() const { return bytes_; }
  std::span<const OriginSpan> origin_spans() const { return origin_spans_; }
  /// Returns the output of `generation` blocks, in order and without overlap. No span is empty.
  std::span<const GeneratedSpan> generated_spans() const { return generated_spans_; }
  /// Marks the whole text as output of a `generation` block.
  void mark_as_generated();
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }

  /// Returns bytes [begin, end) with their origins. An empty slice has an empty span for each
  /// origin next to it. REQUIRES begin <= end <= size() at character boundaries.
  TextWithOrigins slice(size_t begin, size_t end) const;

  /// Appends UTF-8 text without origin.
  void append(std::string_view plain_text) { bytes_ += plain_text; }
  /// Appends `other`, or bytes [begin, end) of it, with their origins.
  void append(const TextWithOrigins& other) { append(other, 0, other.size()); }
  void append(const TextWithOrigins& other, size_t begin, size_t end);

  /// Adds an empty span for each origin of `source` if this text is empty. For results made from
  /// `source`: otherwise an answer that becomes empty would have no position.
  void inherit_origins(const TextWithOrigins& source);

  /// Appends a transformed copy of `source`. Calls transform(begin, end, out) for consecutive byte
  /// ranges of `source`, each with one origin; `transform` appends the new text of the range to the
  /// string `out`. The new text gets the origin of the range.
  template <class Transform>
  void append_transformed(const TextWithOrigins& source, Transform transform) {
    size_t pos = 0;
    for (const OriginSpan& origin_span : source.origin_spans_) {
      if (pos < origin_span.begin) transform(pos, origin_span.begin, bytes_);
      const size_t begin = bytes_.size();
      if (!origin_span.empty()) transform(origin_span.begin, origin_span.end, bytes_);
      add_origin_span({begin, bytes_.size(), origin_span.origin});
      pos = origin_span.end;
    }
    if (pos < source.size()) transform(pos, source.size(), bytes_);
  }

 private:
  /// Adds a span at the end of the text. Merges it with an adjacent span of the same origin.
  void add_origin_span(OriginSpan origin_span);

  std::string bytes_;
  std::vector<OriginSpan> origin_spans_;
  std::vector<GeneratedSpan> generated_spans_;
};

}  // namespace vlmtrain::text::jinja
