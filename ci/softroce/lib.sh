# shellcheck shell=bash disable=SC2034  # variables for whoever sources this
# What the scripts of the Soft-RoCE guest share. Variables of TIDEWATER_* do not reach CI's scripts
# (see ci/lib.sh), so the one for these is taken first, and handed on under another name.
SOFTROCE_DIR=${TIDEWATER_SOFTROCE_DIR:-${SOFTROCE_DIR:-}}
[[ -z $SOFTROCE_DIR ]] || SOFTROCE_DIR=$(realpath -m "$SOFTROCE_DIR")
CALLED_FROM=$PWD # ci/lib.sh goes to the checkout
# shellcheck source=ci/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
export SOFTROCE_DIR=${SOFTROCE_DIR:-$REPO_ROOT/target/softroce}

# The one folder that a guest writes to and the host sees; it has the same path in both.
SOFTROCE_OUT=$REPO_ROOT/target/softroce/out
