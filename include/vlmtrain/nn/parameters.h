#pragma once

#include "vlmtrain/nn/weights/parameters.h"
