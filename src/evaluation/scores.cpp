#include "vlmtrain/evaluation/scores.h"

#include <ATen/ops/gt.h>
#include <ATen/ops/upsample_bilinear2d.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <limits>
#include <map>
#include <sstream>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/image/mask.h"

namespace vlmtrain::evaluation {

namespace {

/// Numbers of pixels of two masks and of their intersection.
struct PixelOverlap {
  int64_t predicted = 0, truth = 0, intersection = 0;

  int64_t union_size() const { return predicted + truth - intersection; }
};

/// REQUIRES: both masks are uint8, contiguous, on the CPU and of equal size, as all functions below
/// do.
PixelOverlap compute_overlap(const at::Tensor& predicted, const at::Tensor& truth) {
  PixelOverlap overlap;
  const auto* const a = predicted.const_data_ptr<uint8_t>();
  const auto* const b = truth.const_data_ptr<uint8_t>();
  for (int64_t i = 0; i < predicted.numel(); ++i) {
    overlap.predicted += a[i] != 0 ? 1 : 0;
    overlap.truth += b[i] != 0 ? 1 : 0;
    overlap.intersection += ((a[i] != 0) & (b[i] != 0)) ? 1 : 0;
  }
  return overlap;
}

/// Returns the smallest window that contains all nonzero pixels of both masks. REQUIRES: there is
/// one.
Window compute_bounding_window(const at::Tensor& a, const at::Tensor& b) {
  const int64_t height = a.size(0), width = a.size(1);
  int64_t top = height, bottom = -1, left = width, right = -1;
  for (const at::Tensor& mask : {a, b}) {
    const auto* row = mask.const_data_ptr<uint8_t>();
    for (int64_t y = 0; y < height; ++y, row += width) {
      const uint8_t* first = std::find_if(row, row + width, [](uint8_t pixel) { return pixel != 0; });
      if (first == row + width) continue;
      const uint8_t* last = row + width - 1;
      while (*last == 0) --last;
      top = std::min(top, y);
      bottom = std::max(bottom, y);
      left = std::min(left, static_cast<int64_t>(first - row));
      right = std::max(right, static_cast<int64_t>(last - row));
    }
  }
  return {.top = top, .left = left, .height = bottom - top + 1, .width = right - left + 1};
}

/// Returns the percentile of the square roots of `squared_distances`, which must not be empty.
/// Interpolates linearly between the two nearest ranks, like numpy. Reorders `squared_distances`.
double compute_distance_percentile(std::vector<int64_t>& squared_distances, double percent) {
  const double rank = percent / 100 * static_cast<double>(squared_distances.size() - 1);
  const auto lower = squared_distances.begin() + static_cast<std::ptrdiff_t>(rank);
  std::nth_element(squared_distances.begin(), lower, squared_distances.end());
  const double lower_distance = std::sqrt(static_cast<double>(*lower));
  if (lower + 1 == squared_distances.end()) return lower_distance;
  const double upper_distance = std::sqrt(static_cast<double>(*std::min_element(lower + 1, squared_distances.end())));
  return lower_distance + (upper_distance - lower_distance) * (rank - std::floor(rank));
}

/// Returns the 95th percentile of the distances from each pixel of the edge `from` to the edge
/// `to`. The window must contain both edges.
double compute_directed_hausdorff95(const at::Tensor& from, const at::Tensor& to, const Window& window) {
  const std::vector<int64_t> window_squared_distances = compute_squared_distances(to, window);
  std::vector<int64_t> edge_squared_distances;
  for (int64_t y = 0; y < window.height; ++y) {
    const uint8_t* row = from.const_data_ptr<uint8_t>() + (window.top + y) * from.size(1) + window.left;
    for (int64_t x = 0; x < window.width; ++x) {
      if (row[x] != 0) edge_squared_distances.push_back(window_squared_distances[y * window.width + x]);
    }
  }
  constexpr double kPercent = 95;
  return compute_distance_percentile(edge_squared_distances, kPercent);
}

double compute_hausdorff95(const at::Tensor& predicted, const at::Tensor& truth) {
  const Window window = compute_bounding_window(predicted, truth);
  const at::Tensor predicted_edge = image::find_mask_edge(predicted);
  const at::Tensor true_edge = image::find_mask_edge(truth);
  return std::max(compute_directed_hausdorff95(predicted_edge, true_edge, window),
                  compute_directed_hausdorff95(true_edge, predicted_edge, window));
}

void add_to_group(std::map<std::string, MaskScoreSums>& groups, const std::string& name, const MaskScore& score) {
  if (!name.empty()) groups[name].add(score);
}

}  // namespace

MaskScore score_mask(const at::Tensor& predicted, const at::Tensor& truth) {
  for (const at::Tensor& mask : {predicted, truth}) {
    VLMTRAIN_CHECK(mask.dim() == 2 && mask.scalar_type() == at::kByte && mask.is_cpu() && mask.numel() > 0,
                   "a mask to score must be uint8 [height, width] on the CPU");
  }
  VLMTRAIN_CHECK(predicted.sizes() == truth.sizes(), "the predicted mask is {} x {}, the reference is {} x {}",
                 predicted.size(0), predicted.size(1), truth.size(0), truth.size(1));
  const at::Tensor a = predicted.contiguous(), b = truth.contiguous();
  const PixelOverlap overlap = compute_overlap(a, b);
  if (overlap.union_size() == 0) {
    return {.iou = 1, .dice = 1, .hausdorff95 = {}, .is_truth_empty = true, .is_prediction_empty = true};
  }
  const auto intersection = static_cast<double>(overlap.intersection);
  MaskScore score{.iou = intersection / static_cast<double>(overlap.union_size()),
                  .dice = 2 * intersection / static_cast<double>(overlap.predicted + overlap.truth),
                  .hausdorff95 = {},
                  .is_truth_empty = overlap.truth == 0,
                  .is_prediction_empty = overlap.predicted == 0};
  if (overlap.predicted > 0 && overlap.truth > 0) score.hausdorff95 = compute_hausdorff95(a, b);
  return score;
}

void MaskScoreSums::add(const MaskScore& score) {
  merge({.masks = 1,
         .iou_sum = score.iou,
         .dice_sum = score.dice,
         .num_masks_with_hausdorff95 = score.hausdorff95 ? 1 : 0,
         .hausdorff95_sum = score.hausdorff95.value_or(0),
         .empty_truths = score.is_truth_empty ? 1 : 0,
         .empty_predictions = score.is_prediction_empty ? 1 : 0});
}

void MaskScoreSums::merge(const MaskScoreSums& other) {
  masks += other.masks;
  iou_sum += other.iou_sum;
  dice_sum += other.dice_sum;
  num_masks_with_hausdorff95 += other.num_masks_with_hausdorff95;
  hausdorff95_sum += other.hausdorff95_sum;
  empty_truths += other.empty_truths;
  empty_predictions += other.empty_predictions;
}

std::optional<double> MaskScoreSums::hausdorff95() const {
  if (num_masks_with_hausdorff95 == 0) return std::nullopt;
  return hausdorff95_sum / static_cast<double>(num_masks_with_hausdorff95);
}

void MaskScores::add(const MaskScore& score, const std::string& task, const std::string& structure) {
  total_.add(score);
  add_to_group(by_task_, task, score);
  add_to_group(by_structure_, structure, score);
}

void MaskScores::merge(const MaskScores& other) {
  total_.merge(other.total_);
  for (const auto& [name, sums] : other.by_task_) by_task_[name].merge(sums);
  for (const auto& [name, sums] : other.by_structure_) by_structure_[name].merge(sums);
}

at::Tensor postprocess_mask(const at::Tensor& logits, int64_t side, const data::ValidRegion& valid_region,
                            image::ImageSize image_size) {
  const auto resize = [](const at::Tensor& map, int64_t rows, int64_t columns) {
    return at::upsample_bilinear2d(map, {rows, columns}, /*align_corners=*/false);
  };
  const at::Tensor square = resize(logits.view({1, 1, logits.size(0), logits.size(1)}), side, side);
  const at::Tensor cropped_square =
      square.narrow(2, 0, valid_region.rows).narrow(3, 0, valid_region.columns).contiguous();
  return resize(cropped_square, image_size.height, image_size.width)[0][0].gt(0).to(at::kByte);
}

namespace {

/// Larger than any distance in an image, and small enough that adding image coordinates does not
/// overflow.
constexpr int64_t kInfiniteDistance = int64_t{1} << 30;

/// Returns for each pixel of the window the distance to the nearest point in its column; at least
/// kInfiniteDistance if the column has no point. Makes one pass down and one pass up.
std::vector<int64_t> compute_column_distances(const at::Tensor& points, const Window& window) {
  const int64_t width = window.width;
  std::vector<int64_t> distances(static_cast<size_t>(window.height * width));
  std::vector<int64_t> previous_row_distances(static_cast<size_t>(width), kInfiniteDistance);
  for (int64_t y = 0; y < window.height; ++y) {
    const uint8_t* row = points.const_data_ptr<uint8_t>() + (window.top + y) * points.size(1) + window.left;
    int64_t* out = &distances[y * width];
    for (int64_t x = 0; x < width; ++x)
      out[x] = previous_row_distances[x] = row[x] != 0 ? 0 : previous_row_distances[x] + 1;
  }
  std::ranges::fill(previous_row_distances, kInfiniteDistance);
  for (int64_t y = window.height - 1; y >= 0; --y) {
    int64_t* out = &distances[y * width];
    for (int64_t x = 0; x < width; ++x)
      out[x] = previous_row_distances[x] = std::min(out[x], previous_row_distances[x] + 1);
  }
  return distances;
}

/// The parabola (x - vertex)² + height, as part of the lower envelope of several.
struct Parabola {
  int64_t vertex;
  int64_t height;
  double start;  // from this x on it is the lowest, until the start of the next one
};

/// Replaces the column distances d of a row with the squared distances to the nearest point of any
/// column, min over v of (x - v)² + d(v)². That is the lower envelope of one parabola per column
/// (Felzenszwalb and Huttenlocher). `envelope`: memory that is reused between rows.
void square_and_minimize_row(int64_t* row, int64_t width, std::vector<Parabola>& envelope) {
  envelope.clear();
  for (int64_t x = 0; x < width; ++x) {
    if (row[x] >= kInfiniteDistance) continue;
    Parabola next{x, row[x] * row[x], -std::numeric_limits<double>::infinity()};
    while (!envelope.empty()) {
      const Parabola& last = envelope.back();
      // The two parabolas intersect at next.start. If `last` is lowest nowhere, it is removed.
      const int64_t intersection_numerator = next.height + x * x - last.height - last.vertex * last.vertex;
      next.start = static_cast<double>(intersection_numerator) / static_cast<double>(2 * (x - last.vertex));
      if (next.start > last.start) break;
      envelope.pop_back();
      next.start = -std::numeric_limits<double>::infinity();
    }
    envelope.push_back(next);
  }
  auto lowest = envelope.cbegin();
  for (int64_t x = 0; x < width; ++x) {
    while (lowest + 1 != envelope.cend() && (lowest + 1)->start < static_cast<double>(x)) ++lowest;
    row[x] = (x - lowest->vertex) * (x - lowest->vertex) + lowest->height;
  }
}

}  // namespace

std::vector<int64_t> compute_squared_distances(const at::Tensor& points, const Window& window) {
  std::vector<int64_t> distances = compute_column_distances(points, window);
  std::vector<Parabola> envelope;
  for (int64_t y = 0; y < window.height; ++y)
    square_and_minimize_row(&distances[y * window.width], window.width, envelope);
  return distances;
}

namespace {

char to_lower(char c) {
  return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
}

bool is_digit(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) != 0;
}

/// Converts ASCII letters to lower case and punctuation to spaces. Keeps the bytes of other
/// characters.
std::string strip_punctuation(std::string_view text) {
  std::string stripped;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool is_in_number =
        (c == '.' || c == ',') && i > 0 && i + 1 < text.size() && is_digit(text[i - 1]) && is_digit(text[i + 1]);
    if (c == '\'' || (is_in_number && c == ',')) continue;  // don't equals dont, and 1,000 equals 1000
    stripped += std::ispunct(static_cast<unsigned char>(c)) != 0 && !is_in_number ? ' ' : to_lower(c);
  }
  return stripped;
}

std::map<std::string, int64_t> count_words(const std::string& normalized) {
  std::map<std::string, int64_t> counts;
  std::istringstream words(normalized);
  for (std::string word; words >> word;) ++counts[word];
  return counts;
}

}  // namespace

AnswerType determine_answer_type(const io::Record& record) {
  std::string type = record.answer_type;
  std::ranges::transform(type, type.begin(), to_lower);
  if (type == "closed") return AnswerType::kClosed;
  if (type == "open") return AnswerType::kOpen;
  const std::string answer = record.turns.empty() ? "" : normalize_answer(record.turns.back().text);
  return answer == "yes" || answer == "no" ? AnswerType::kClosed : AnswerType::kOpen;
}

std::string normalize_answer(std::string_view text) {
  // Words by the digit that replaces them.
  constexpr std::array<std::string_view, 11> kNumberWords{"none", "one",   "two",   "three", "four", "five",
                                                          "six",  "seven", "eight", "nine",  "ten"};
  std::string normalized;
  const std::string stripped = strip_punctuation(text);
  std::istringstream words(stripped);
  for (std::string word; words >> word;) {
    if (word == "a" || word == "an" || word == "the") continue;
    if (word == "zero") word = "none";
    const auto number = std::ranges::find(kNumberWords, word);
    if (number != kNumberWords.end()) word = std::to_string(number - kNumberWords.begin());
    if (!normalized.empty()) normalized += ' ';
    normalized += word;
  }
  if (!normalized.empty()) return normalized;
  // A single "a" is the answer to a multiple-choice question, not an article.
  std::istringstream word_stream(stripped);
  std::string word, second_word;
  return word_stream >> word && word == "a" && !(word_stream >> second_word) ? word : normalized;
}

void ClosedQuestionScore::add(std::string_view expected, std::string_view prediction) {
  ++samples;
  num_correct += normalize_answer(expected) == normalize_answer(prediction) ? 1 : 0;
}

void OpenQuestionScore::add(std::string_view expected, std::string_view prediction) {
  ++samples;
  const std::string reference = normalize_answer(expected), candidate = normalize_answer(prediction);
  num_exact_matches += reference == candidate ? 1 : 0;
  const auto reference_words = count_words(reference), candidate_words = count_words(candidate);
  int64_t num_common = 0, num_additional = 0, num_missed = 0;
  for (const auto& [word, count] : candidate_words)
    (reference_words.contains(word) ? num_common : num_additional) += count;
  for (const auto& [word, count] : reference_words) num_missed += candidate_words.contains(word) ? 0 : count;
  if (num_common == 0) return;  // all three scores are 0
  const double precision = static_cast<double>(num_common) / static_cast<double>(num_common + num_additional);
  const double recall = static_cast<double>(num_common) / static_cast<double>(num_common + num_missed);
  precision_sum += precision;
  recall_sum += recall;
  f1_sum += 2 * precision * recall / (precision + recall);
}

}  // namespace vlmtrain::evaluation
