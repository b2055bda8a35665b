// Times in the reader's own zone and language. Without this script they are shown with their offset.

const format = new Intl.DateTimeFormat(document.documentElement.lang, { dateStyle: "medium", timeStyle: "short" });

for (const time of document.querySelectorAll("time[datetime]")) {
  const moment = new Date(time.dateTime);
  if (Number.isNaN(moment.getTime())) continue;
  time.title = time.textContent;
  time.textContent = format.format(moment);
}
