#pragma once

#include "vlmtrain/base/error.h"
#include "vlmtrain/image/normalize.h"

namespace vlmtrain::models {

/// Throws UserError (kBadData) for a video whose frames are normalized in another way than images: a model here
/// normalizes all pixels of a micro-batch alike. Without videos such a checkpoint trains as any other.
inline void check_frame_normalization(const image::Normalization& images, const image::Normalization& frames) {
  if (images == frames) return;
  throw data_error(
      "the checkpoint's image_mean, image_std or rescale_factor of videos differ from those of images, and the model "
      "here normalizes both alike; make them equal in its processor files, or train on images alone");
}

}  // namespace vlmtrain::models
