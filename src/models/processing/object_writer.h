#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "models/media/media_layout.h"
#include "models/media/media_opener.h"
#include "vlmtrain/data/media_options.h"
#include "vlmtrain/image/pixel_transforms.h"
#include "vlmtrain/image/points.h"
#include "vlmtrain/image/size.h"
#include "vlmtrain/io/record.h"
#include "vlmtrain/models/box_format.h"
#include "vlmtrain/text/chat_template.h"

namespace vlmtrain::models {

/// Writes the names, boxes and points of one record as the model reads them. Before the chat
/// template is applied, insert_tokens() replaces each part that depends on the images by a token of
/// private-use characters; write() replaces the tokens by texts when the sizes of the images are
/// known. Refers to the record, which must outlive it. Not thread-safe.
class ObjectWriter {
 public:
  ObjectWriter(const io::Record& record, BoxFormat format, const data::BoxConversion& conversion);

  /// Returns `turns`, the turns of the record, with tokens.
  std::vector<text::Turn> insert_tokens(std::vector<text::Turn> turns) const;

  /// Reads the sizes of the images of boxes. Throws data::SampleError for a box outside of its image
  /// and for a box on a volume. `media` must outlive the object.
  void locate(const MediaList& media);

  /// Returns `chat`, which was rendered from the turns of insert_tokens(), with texts instead of
  /// tokens. REQUIRES: locate(). Throws data::SampleError if the image as the model gets it does not
  /// contain a box, and if the chat template repeats a token.
  text::RenderedChat write(const text::RenderedChat& chat, const PixelLimits& limits,
                           const image::Augmentation& augmentation = {}) const;
  /// Returns the turns of the record and the maps of its images. Throws as write().
  WrittenRecord write_record(const PixelLimits& limits) const;

  /// Returns `augmentation` without flip and rotation if they would move a part of a box or a point
  /// out of its image.
  image::Augmentation limit_augmentation(image::Augmentation augmentation) const;

  /// Returns the boxes and points of an image, in pixels of a preview of `preview_size` that shows its
  /// whole view.
  std::vector<image::Box> get_preview_boxes(const Medium& medium, const PixelLimits& limits,
                                            image::ImageSize preview_size) const;

 private:
  /// A part of a turn's text that is replaced: a whole mark, or one number of it.
  struct Slot {
    size_t object_index;
    io::TextRange range;
    std::optional<size_t> number_index;
  };

  std::vector<std::string> write_slots(const PixelLimits& limits, const image::Augmentation& augmentation) const;
  /// Returns the coordinates of an object as written numbers.
  std::vector<std::string> write_numbers(size_t object_index, const PixelLimits& limits,
                                         const image::Augmentation& augmentation) const;
  /// Replaces the slots in the turns of the record by `texts`.
  void replace_slots(std::vector<text::Turn>& turns, const std::vector<std::string>& texts) const;
  /// Returns a box in pixels of the decoded image, which has `size`. Throws data::SampleError if the
  /// box is outside of the image.
  image::Box locate_box(const io::ObjectMark& object, const io::MediaRef& file, image::ImageSize size) const;
  CoordinateMap make_coordinate_map(const Medium& medium, const PixelLimits& limits) const;
  /// Returns a box in the view, clipped to it. Throws data::SampleError if it is outside.
  image::Box map_to_view(size_t object_index, const PixelLimits& limits, const image::Augmentation& augmentation) const;

  const io::Record& record_;
  BoxFormat format_;
  data::BoxConversion conversion_;
  std::string delimiter_;                         // of tokens
  std::vector<Slot> slots_;                       // in the order of the text
  std::vector<const Medium*> image_media_;        // by image; null for images without boxes
  std::vector<std::optional<image::Box>> boxes_;  // by object, in pixels of the decoded image
};

}  // namespace vlmtrain::models
