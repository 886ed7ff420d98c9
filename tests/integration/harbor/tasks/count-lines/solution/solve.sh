#!/bin/bash
printf '#!/bin/bash\ngrep -c . "$1"\n' > /app/count.sh
chmod +x /app/count.sh
