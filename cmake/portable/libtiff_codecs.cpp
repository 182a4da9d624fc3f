// Functions of codecs that libtiff.a refers to and portable programs do not contain: encoders of zstd and WebP, which
// nothing calls, since files are only read; LERC, because of its size; JBIG, because its license is the GPL.
// read_tiff_layout() refuses files of the latter two.

extern "C" {

#define VLMTRAIN_UNUSED_FUNCTION(name) \
  int name() {                         \
    return 0;                          \
  }

VLMTRAIN_UNUSED_FUNCTION(ZSTD_maxCLevel)
VLMTRAIN_UNUSED_FUNCTION(ZSTD_compress)
VLMTRAIN_UNUSED_FUNCTION(ZSTD_compressBound)
VLMTRAIN_UNUSED_FUNCTION(ZSTD_compressStream)
VLMTRAIN_UNUSED_FUNCTION(ZSTD_endStream)
VLMTRAIN_UNUSED_FUNCTION(ZSTD_initCStream)
VLMTRAIN_UNUSED_FUNCTION(ZSTD_createCStream)
VLMTRAIN_UNUSED_FUNCTION(ZSTD_freeCStream)
VLMTRAIN_UNUSED_FUNCTION(WebPEncode)
VLMTRAIN_UNUSED_FUNCTION(WebPConfigInitInternal)
VLMTRAIN_UNUSED_FUNCTION(WebPPictureFree)
VLMTRAIN_UNUSED_FUNCTION(WebPPictureImportRGB)
VLMTRAIN_UNUSED_FUNCTION(WebPPictureImportRGBA)
VLMTRAIN_UNUSED_FUNCTION(WebPPictureInitInternal)
VLMTRAIN_UNUSED_FUNCTION(WebPValidateConfig)
VLMTRAIN_UNUSED_FUNCTION(lerc_decode)
VLMTRAIN_UNUSED_FUNCTION(lerc_encodeForVersion)
VLMTRAIN_UNUSED_FUNCTION(lerc_getBlobInfo)
VLMTRAIN_UNUSED_FUNCTION(jbg_dec_free)
VLMTRAIN_UNUSED_FUNCTION(jbg_dec_getimage)
VLMTRAIN_UNUSED_FUNCTION(jbg_dec_getsize)
VLMTRAIN_UNUSED_FUNCTION(jbg_dec_in)
VLMTRAIN_UNUSED_FUNCTION(jbg_dec_init)
VLMTRAIN_UNUSED_FUNCTION(jbg_enc_free)
VLMTRAIN_UNUSED_FUNCTION(jbg_enc_init)
VLMTRAIN_UNUSED_FUNCTION(jbg_enc_out)
VLMTRAIN_UNUSED_FUNCTION(jbg_newlen)
VLMTRAIN_UNUSED_FUNCTION(jbg_strerror)

}  // extern "C"
